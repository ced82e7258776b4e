"""The shared state: one path for every watermark, and time that our own pauses do not count in."""

from protocol.messages import WatermarkUpdate
from tests.unit.decode_service.driver import Driver, messages


def test_watermark_is_that_of_the_moment_of_sending() -> None:
    """Two changes before a send are one send, of the newest value."""
    driver = Driver(1, ring=1000)
    idle, busy = driver.join(group="idle"), driver.join()
    for room in ("r1", "r2", "r3"):
        driver.register(room)
        driver.move([busy], room)
    owed = [message for message in messages(driver.tick(), WatermarkUpdate) if message.session == idle]
    assert owed == [WatermarkUpdate(3, 0, idle)]
    assert messages(driver.tick(), WatermarkUpdate) == []


def test_session_that_waits_hears_first() -> None:
    """Whoever holds an unwritten grant is told within the verb that freed; the others when there is time."""
    driver = Driver(1)
    driver.join(group="idle")
    writer, waiter = driver.join(), driver.join(group="h")
    driver.register("r")
    driver.register("s", group="h")
    granted = driver.grant([writer], "r")
    driver.grant([waiter], "s")
    outputs = driver.scattered(driver.write(granted, "r"))
    assert messages(outputs, WatermarkUpdate) == [WatermarkUpdate(1, 0, waiter)]
    assert driver.handler.has_fan_out
    assert len(messages(driver.do(driver.handler.fan_out(driver.now, 1)), WatermarkUpdate)) == 1
    assert len(messages(driver.do(driver.handler.fan_out(driver.now, 10)), WatermarkUpdate)) == 1
    assert not driver.handler.has_fan_out


def test_run_time_leaves_pauses_out() -> None:
    """A gap far longer than the watch interval, while rooms live, counts as one watch interval."""
    driver = Driver(1)
    session = driver.join()
    driver.pause(100)
    driver.tick()
    assert driver.count("pauses") == 0
    driver.register("r")
    driver.wait(2)
    before = driver.handler.state.run_time
    driver.pause(100)
    driver.tick()
    assert driver.handler.state.run_time - before == 0.5
    assert session
