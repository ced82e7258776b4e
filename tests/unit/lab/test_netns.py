"""Namespaces are refused in words where they cannot be had; where they can, the chaos scenarios show what they do."""

import os
import shutil

import pytest

from lab.chaos.expectations import Unavailable
from lab.netns import LinkedNamespaces


def test_without_the_command_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lacks ``ip`` is told what to install."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(Unavailable, match="install the package iproute2"), LinkedNamespaces():
        pytest.fail("it cannot be entered")


def test_without_root_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not root is told so, and nothing is tried."""
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/false")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="need root"), LinkedNamespaces():
        pytest.fail("it cannot be entered")


def test_a_refusal_of_the_kernel_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root without the capability is told which one is missing."""
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/false")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(Unavailable, match="CAP_NET_ADMIN"), LinkedNamespaces():
        pytest.fail("it cannot be entered")


def test_a_command_is_run_inside_by_name() -> None:
    """The start of the command line names the namespace, which is this process's own."""
    hosts = LinkedNamespaces()
    assert hosts.inside(hosts.decode)[1:] == ("netns", "exec", f"pdst-{os.getpid()}-d")
