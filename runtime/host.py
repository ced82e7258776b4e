"""Who this process shares memory with."""

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def shared_memory_host_id(shm_dir: Path) -> str:
    """A name that is equal exactly for processes that see the same ``shm_dir``: this boot of the kernel, and its file system.

    Two containers on one host have one boot id; their private ``/dev/shm`` are two file systems, a shared one is one. A
    directory that does not exist belongs to nobody else.
    """
    boot = _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else "unknown"
    device = shm_dir.stat().st_dev if shm_dir.is_dir() else 0
    return f"{boot}.{device}"
