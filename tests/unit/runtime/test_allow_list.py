"""The allow-list: who a key is good for, and every mistake in it at once."""

from pathlib import Path

import pytest
import zmq

from runtime.allow_list import AllowListError, Client, allow_list_entry, load_allow_list


def new_key() -> str:
    """Some public key."""
    return zmq.curve_keypair()[0].decode("ascii")


def written(folder: Path, text: str, name: str = "allow.toml") -> Path:
    """A list with that text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_an_entry_covers_its_ranks_and_nothing_else() -> None:
    """NAME covers NAME and NAME-<rank>, and groups NAME and NAME-dp<n>; names that merely begin alike are not covered."""
    client = Client("c", ("k",), ("p",), ("g",))
    assert [name for name in ("p", "p-0", "p-17", "p-4095") if not client.may_be(name)] == []
    others = ("", "p-", "p-00", "p-0-0", "p-x", "pp", "p0", "P-0", "q-0", "p-99999", "p-\u0663")
    assert [name for name in others if client.may_be(name)] == []
    assert [name for name in ("g", "g-dp0", "g-dp12") if not client.may_join(name)] == []
    assert [name for name in ("g-0", "g-dp", "p", "g-dp0-dp0") if client.may_join(name)] == []


def test_defaults_come_from_the_name(tmp_path: Path) -> None:
    """A client with nothing but keys speaks as the prefill of its name, in the group of its name; each key leads to it."""
    old, new = new_key(), new_key()
    listed = load_allow_list(written(tmp_path, f'[clients.pre]\npublic_keys = ["{old}", "{new}"]\n'))
    assert listed.client(old) is listed.client(new)
    assert listed.client(old) == Client("pre", (old, new), ("pre",), ("pre",))
    assert listed.client(new_key()) is None


def test_the_entry_that_keygen_prints_is_read_back(tmp_path: Path) -> None:
    """What an operator copies from keygen is a valid entry."""
    key = new_key()
    listed = load_allow_list(written(tmp_path, allow_list_entry("pre.fill-1", key)))
    assert listed.client(key) == Client("pre.fill-1", (key,), ("pre.fill-1",), ("pre.fill-1",))


def test_a_directory_is_read_as_one_list(tmp_path: Path) -> None:
    """Each file adds its clients; other files beside them are left alone."""
    keys = [new_key(), new_key()]
    for number, key in enumerate(keys):
        written(tmp_path, f'[clients.c{number}]\npublic_keys = ["{key}"]\n', f"{number}.toml")
    written(tmp_path, "not a list", "README")
    assert [load_allow_list(tmp_path).client(key) is not None for key in keys] == [True, True]


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    """One error names each wrong entry with its field and what was expected."""
    key = new_key()
    text = f"""
    stray = 1
    [clients.a]
    public_keys = ["{key}"]
    [clients.b]
    public_keys = ["{key}"]
    colour = "red"
    [clients.c]
    public_keys = ["short"]
    groups = []
    max_sessions = 0
    [clients.d]
    """
    with pytest.raises(AllowListError) as caught:
        load_allow_list(written(tmp_path, text))
    starts = [problem.split(":")[0] + ":" + problem.split(":")[1] for problem in caught.value.problems]
    expected = [
        "allow.toml: stray",
        "clients.b: colour",
        "clients.c: public_keys",
        "clients.c: groups",
        "clients.c: max_sessions",
    ]
    assert starts == [*expected, "clients.d: public_keys"]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ('public_keys = ["{a}"]', 'public_keys = ["{a}"]', "its key belongs to one as well"),
        ('public_keys = ["{a}"]\nprefill_ids = ["p"]', 'public_keys = ["{b}"]\nprefill_ids = ["p"]', "'p' is covered by"),
        ('public_keys = ["{a}"]\nprefill_ids = ["p"]', 'public_keys = ["{b}"]\nprefill_ids = ["p-1"]', "'p-1' is covered by"),
    ],
)
def test_two_clients_are_never_one_prefill(tmp_path: Path, first: str, second: str, words: str) -> None:
    """A key or a prefill rank that two entries claim is refused, since each could end the other's sessions."""
    keys = {"a": new_key(), "b": new_key()}
    text = f"[clients.one]\n{first.format(**keys)}\n[clients.two]\n{second.format(**keys)}\n"
    with pytest.raises(AllowListError, match=words):
        load_allow_list(written(tmp_path, text))


def test_a_group_may_have_several_clients(tmp_path: Path) -> None:
    """An instance that spans hosts has a key per host and one group."""
    keys = [new_key(), new_key()]
    entries = [f'[clients.h{n}]\npublic_keys = ["{key}"]\ngroups = ["inst"]\n' for n, key in enumerate(keys)]
    listed = load_allow_list(written(tmp_path, "".join(entries)))
    assert all(client is not None and client.may_join("inst") for client in map(listed.client, keys))


@pytest.mark.parametrize(("text", "words"), [(None, "does not exist"), ("= nonsense", "allow.toml"), ("clients = 3", "tables")])
def test_an_unreadable_list_is_told(tmp_path: Path, text: str | None, words: str) -> None:
    """A missing file, a file that is not TOML, and one of another shape each have their reason."""
    path = tmp_path / "allow.toml" if text is None else written(tmp_path, text)
    with pytest.raises(AllowListError, match=words):
        load_allow_list(path)
