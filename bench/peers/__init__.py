"""Other engines, installed away from the project and started as HTTP servers on the same model."""
