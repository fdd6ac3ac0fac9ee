"""Custom callback: counts the events of a run, and prints those with a detail."""

from navi_core.learn import Event, register_callback

counts: dict[str, int] = {}


@register_callback("reporter")
def report(event: Event) -> None:
    """Receive one event in the run's process."""
    counts[event.kind] = counts.get(event.kind, 0) + 1
    if event.detail is not None:  # adaptations, early stops, replaced actors
        print(f"{event.subject}, decision {event.step:,}: {event.kind}, {event.detail}")
