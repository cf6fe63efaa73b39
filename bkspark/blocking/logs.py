"""Named logs, their writers and their leadership, blocking."""

from __future__ import annotations

from typing import Self

from bkspark import log as aio_log
from bkspark.blocking.contexts import WriterTwin
from bkspark.blocking.twins import Twin, blocking, iterating, reading, submitting


class LogWriter(WriterTwin[aio_log.LogWriter]):
    """Appends to a log until it is closed or another process opens the log; see `bkspark.log.LogWriter`."""

    name = reading(aio_log.LogWriter.name)
    ledger_id = reading(aio_log.LogWriter.ledger_id)
    append = blocking(aio_log.LogWriter.append)
    append_many = blocking(aio_log.LogWriter.append_many)
    submit = submitting(aio_log.LogWriter.submit)
    roll = blocking(aio_log.LogWriter.roll)
    close = blocking(aio_log.LogWriter.close)


class ConsumerRegistration(Twin[aio_log.ConsumerRegistration]):
    """A reader's registration in one log; see `bkspark.log.ConsumerRegistration`."""

    position = reading(aio_log.ConsumerRegistration.position)
    move = blocking(aio_log.ConsumerRegistration.move)
    end = blocking(aio_log.ConsumerRegistration.end)


class Election(Twin[aio_log.Election]):
    """One contender for a log's leadership; entering it waits until it leads. See `bkspark.log.Election`."""

    is_lost = reading(aio_log.Election.is_lost)
    win = blocking(aio_log.Election.win)
    resign = blocking(aio_log.Election.resign)
    contenders = blocking(aio_log.Election.contenders)

    def __enter__(self) -> Self:
        self.win()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(self._asynchronous.resign)


class Log(Twin[aio_log.Log]):
    """One log, whether or not it exists yet; see `bkspark.log.Log`."""

    name = reading(aio_log.Log.name)
    create = blocking(aio_log.Log.create)
    election = blocking(aio_log.Log.election, Election)
    open_for_writing = blocking(aio_log.Log.open_for_writing, LogWriter)
    read = iterating(aio_log.Log.read)
    follow = iterating(aio_log.Log.follow)
    earliest = blocking(aio_log.Log.earliest)
    latest = blocking(aio_log.Log.latest)
    at_time = blocking(aio_log.Log.at_time)
    show = blocking(aio_log.Log.show)
    truncate = blocking(aio_log.Log.truncate)
    recover = blocking(aio_log.Log.recover)
    vacuum = blocking(aio_log.Log.vacuum)
    retention = blocking(aio_log.Log.retention)
    set_retention = blocking(aio_log.Log.set_retention)
    expire = blocking(aio_log.Log.expire)
    register_consumer = blocking(aio_log.Log.register_consumer, ConsumerRegistration)
    consumers = blocking(aio_log.Log.consumers)
    remove_consumer = blocking(aio_log.Log.remove_consumer)
    delete = blocking(aio_log.Log.delete)
