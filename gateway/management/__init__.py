"""Management of the product from the command line."""
