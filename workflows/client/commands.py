"""The commands: each makes its call, shows the answer and says how it went as an exit code."""

from __future__ import annotations

from argparse import Namespace

from workflows.client import calls, config, views
from workflows.client.client import DispatcherClient
from workflows.client.errors import BadAnswer, OutcomeUnknown, UsageError
from workflows.client.exits import DONE, FAILED, LOST, TEMPORARY
from workflows.client.output import Screen
from workflows.client.payloads import input_payload, output_summary
from workflows.client.replies import Reply
from workflows.client.waiting import has_ended, wait_for_end


def poll(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    agent = _agent(args)
    reply = client.send(calls.pending(limit=args.limit, agent_id=agent))
    runs = reply.object().get("runs")
    if not isinstance(runs, list):
        raise BadAnswer("The server's answer has no list of runs")
    now = views.server_time(reply.date)
    screen.show(reply, views.pending(views.objects(runs), now=now, columns=screen.columns, agent=agent))
    return DONE


def claim(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    session = _session(args)
    reply = client.send(calls.claim(args.run_id, session_id=session, agent_id=_agent(args)))
    screen.show(reply, views.claimed(reply.object(), session=session, columns=screen.columns))
    return DONE


def start(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    return _move(calls.start(args.run_id, session_id=_session(args), lease_no=args.lease_no), client, screen)


def heartbeat(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    call = calls.heartbeat(
        args.run_id,
        session_id=_session(args),
        lease_no=args.lease_no,
        percent=args.percent,
        message=args.message,
    )
    reply = client.send(call)
    run = reply.object()
    screen.show(reply, views.heartbeat(run))
    return LOST if run.get("directive") == "stop" else DONE


def complete(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    session = _session(args)
    output = None if args.output is None else output_summary(args.output)
    call = calls.complete(args.run_id, session_id=session, lease_no=args.lease_no, output_summary=output)
    return _move(call, client, screen)


def fail(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    call = calls.fail(
        args.run_id,
        session_id=_session(args),
        lease_no=args.lease_no,
        error=args.error,
        retryable=args.retryable,
        retry_after_seconds=args.retry_after,
    )
    return _move(call, client, screen)


def release(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    call = calls.release(args.run_id, session_id=_session(args), lease_no=args.lease_no, reason=args.reason)
    return _move(call, client, screen)


def cancel(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    return _move(calls.cancel(args.run_id, reason=args.reason), client, screen)


def run(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    from workflows.client import running

    return running.run(args, client, screen)


def completion(args: Namespace, screen: Screen) -> int:
    """Local: needs neither server nor token."""
    from workflows.client.completion import script

    screen.plain(script(args.parser, args.shell))
    return DONE


def show(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    reply = client.send(calls.show(args.run_id))
    now = views.server_time(reply.date)
    screen.show(reply, views.detail(reply.object(), now=now, columns=screen.columns))
    return DONE


def stats(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    reply = client.send(calls.stats())
    now = views.server_time(reply.date)
    screen.show(reply, views.stats(reply.object(), now=now, columns=screen.columns))
    return DONE


def submit(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    reply = _submit(args, client)
    run = reply.object()
    if args.wait is None:
        screen.show(reply, views.submitted(run, columns=screen.columns))
        return DONE
    if not screen.as_json:
        screen.show(reply, views.submitted(run, columns=screen.columns))
    with screen.progress(f"Waiting, {views.words(run.get('status'))}") as progress:
        reply = wait_for_end(
            client, reply, seconds=args.wait, on_news=lambda run: progress(f"Waiting, {views.words(run.get('status'))}")
        )
    run = reply.object()
    now = views.server_time(reply.date)
    screen.show(reply, views.detail(run, now=now, columns=screen.columns))
    if not has_ended(run):
        screen.warn(f"The time to wait is over. Look later with: dispatcher-agent show {run.get('id')}")
        return TEMPORARY
    return DONE if run.get("status") == "completed" else FAILED


def _submit(args: Namespace, client: DispatcherClient) -> Reply:
    import uuid

    call = calls.submit(
        args.workflow_type,
        idempotency_key=args.idempotency_key or str(uuid.uuid4()),
        input_payload=None if args.input is None else input_payload(args.input),
        priority=args.priority,
        owner_agent_id=args.owner,
    )
    return client.create(call)


def _move(call: calls.Call, client: DispatcherClient, screen: Screen) -> int:
    reply = client.send(call)
    screen.show(reply, views.moved(reply.object(), columns=screen.columns))
    return DONE


def advice(error: Exception) -> str | None:
    """What to do after a call whose outcome nobody knows."""
    if not isinstance(error, OutcomeUnknown):
        return None
    key = error.facts.get("idempotency_key")
    again = f"Repeating the command is safe with --idempotency-key {key}" if key else "Repeating this command is safe"
    return f"Whether the call took effect is unknown. {again}."


def _session(args: Namespace) -> str:
    session = args.session or config.from_environment(config.SESSION_VARIABLE)
    if not session:
        raise UsageError(f"Whose lease is it? Give --session, or set {config.SESSION_VARIABLE}")
    return session


def _agent(args: Namespace) -> str | None:
    return args.agent or config.from_environment(config.AGENT_VARIABLE)
