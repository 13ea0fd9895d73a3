"""Data files that no manifest lists: archivers that were killed leave them. They are found, and removed safely.

A file without a manifest may also be that of an archiver that works at the moment, or was paused and goes on in a week. So a
sweep takes away its chance first, and does not trust clocks for that:

1. It reads manifest N, then lists the data. It chooses the files that N neither lists nor has replaced.
2. It writes manifest N + 1, which has its own number as `swept`. If another process has written N + 1, a chosen file may be
   listed by now: the sweep is refused, and removes nothing.
3. It removes the files.

An archiver or a compaction that had uploaded such a file has read manifest N or an earlier one. It lists files in the next
number only, which is taken, so it is refused. A follower lists its files in any later manifest, so it compares: if `swept` is
above the number that it knew before it wrote them, they may be gone, and it begins again behind the last offset that is listed.
Lists of a file store may lack a file, which then stays; they may not miss a manifest, and those of S3, Google Cloud Storage,
Azure Blob Storage and local disks do not.

The age of files is a courtesy: a sweep that leaves young files alone disturbs no archiver that works. It also covers followers
of earlier versions, which do not compare.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from riverrun.archive.manifest import ArchiveStore, TopicManifest


@dataclass(frozen=True, slots=True)
class Leftover:
    """A data file that no manifest lists.

    Args:
        name: Its name below the topic's `data`.
        size: Size, bytes.
        modified_ms: When it was written, by the file store's clock, ms since the epoch.
    """

    name: str
    size: int
    modified_ms: int


def leftovers(store: ArchiveStore, manifest: TopicManifest) -> list[Leftover]:
    """Return the data files that a manifest does not know, by name.

    Args:
        store: The archive.
        manifest: The topic's latest manifest.

    Raises:
        ArchiveError: If the file store does not answer.
    """
    known = {file.name for file in manifest.files} | {*manifest.replaced}
    sizes = store.data(manifest.topic)
    found = {name: store.modified_ms(manifest.topic, name) for name in sorted(sizes.keys() - known)}
    return [Leftover(name, sizes[name], written_ms) for name, written_ms in found.items() if written_ms is not None]


def sweep(
    store: ArchiveStore, manifest: TopicManifest, before_ms: int, *, now_ms: int, by: str
) -> tuple[TopicManifest, list[Leftover]]:
    """Remove the leftovers that are older than a time.

    Args:
        store: The archive.
        manifest: The topic's manifest.
        before_ms: Time before which they were written, ms since the epoch.
        now_ms: The present, ms since the epoch.
        by: The user, for the manifest.

    Returns:
        The manifest now, and the files that are gone; the given one, if there are none.

    Raises:
        ArchiveError: If another archiver is at work, or the archive refuses.
    """
    old = [each for each in leftovers(store, manifest) if each.modified_ms < before_ms]
    if not old:
        return manifest, []
    found = store.commit(replace(manifest, swept=manifest.number + 1, written_ms=now_ms, by=by))
    store.remove(manifest.topic, [each.name for each in old])
    return found, old
