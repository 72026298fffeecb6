"""Generated secrets: private, stable, and never lost by a half-written file."""

from pathlib import Path

import msgspec
import pytest

from gateway.embedded.errors import EmbeddedError
from gateway.embedded.secret_store import keep_demo, load_secrets
from tenants.keys import parse_key
from tenants.services.demo import new_access


def test_secrets_stay_the_same_and_are_private(tmp_path: Path) -> None:
    """A second load returns what the first one made; only the owner may read the file."""
    path = tmp_path / "secrets.json"
    first = load_secrets(path)
    assert load_secrets(path) == first
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_instances_share_no_secret(tmp_path: Path) -> None:
    """Each value is fresh."""
    one, two = load_secrets(tmp_path / "a"), load_secrets(tmp_path / "b")
    assert one.secret_key != two.secret_key
    assert one.key_pepper != two.key_pepper
    assert one.engine_token != two.engine_token
    assert one.demo != two.demo


def test_demo_keys_have_the_form_of_keys(tmp_path: Path) -> None:
    """The demo's keys pass the offline check: the operator's is a management key, a tenant's an API key."""
    demo = load_secrets(tmp_path / "s").demo
    kinds = [parse_key(account.api_key) for account in (demo.operator, *demo.tenants.values())]
    assert [parsed.kind if parsed else None for parsed in kinds] == ["op", "live", "live"]


def test_new_demo_credentials_are_kept_and_nothing_else_changes(tmp_path: Path) -> None:
    """A successor of a dead demo key is what the next start finds; the pepper and the other secrets stay."""
    path = tmp_path / "s"
    first = load_secrets(path)
    fresh = new_access()
    keep_demo(path, fresh)
    kept = load_secrets(path)
    assert kept.demo == fresh
    assert msgspec.structs.replace(kept, demo=first.demo) == first
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_same_demo_credentials_write_nothing(tmp_path: Path) -> None:
    """An ordinary restart leaves the file alone."""
    path = tmp_path / "s"
    first = load_secrets(path)
    before = path.stat().st_ino
    keep_demo(path, first.demo)
    assert path.stat().st_ino == before


def test_what_the_environment_sets_is_left_alone(tmp_path: Path) -> None:
    """A setting of the user's wins over a generated one."""
    secrets = load_secrets(tmp_path / "s")
    assert set(secrets.environment({"SECRET_KEY": "mine"})) == {"KEY_PEPPER", "ENGINE_TOKEN"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"secret_key": "a"}'])
def test_a_broken_file_is_never_replaced_silently(tmp_path: Path, content: str) -> None:
    """Losing the pepper voids every key: a person decides."""
    path = tmp_path / "secrets.json"
    path.write_text(content)
    with pytest.raises(EmbeddedError, match="move it away"):
        load_secrets(path)
    assert path.read_text() == content
