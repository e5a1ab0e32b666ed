"""What schemathesis cannot know about this API."""

import os

import schemathesis

# Revoking these tokens would end the test: those of the tests and of the nodes.
KEPT = set(os.environ["SLUICE_KEPT_TOKENS"].split(","))
# Whose token it is, if it is a node's.
NODE = os.environ.get("SLUICE_NODE_ID")
# An answer may wait this long for a change; nothing is learned from waiting longer.
WAIT_MS = 20
WAIT_MS_MAX = 20_000


@schemathesis.hook
def filter_case(context, case):
    revokes = (case.path_parameters or {}).get("id") in KEPT
    return not revokes and not waits((case.query or {}).get("wait_ms"))


@schemathesis.hook
def map_query(context, query):
    if query and waits(query.get("wait_ms")):
        query["wait_ms"] = WAIT_MS
    return query


def waits(wait_ms):
    """Whether a parameter means a wait that is too long for a test, but not for the API."""
    return str(wait_ms).isdecimal() and WAIT_MS < int(wait_ms) <= WAIT_MS_MAX


@schemathesis.hook
def before_call(context, case, kwargs):
    # A node may report for itself only: nothing is learned from reports of others.
    if NODE and case.operation.path.endswith("/nodes/{id}/reports"):
        case.path_parameters["id"] = int(NODE)


@schemathesis.check
def what_fits_the_schema_can_be_read(context, response, case):
    """A refusal may be about what the request means, never about its form."""
    meta = case.meta
    if meta is None or not meta.generation.mode.is_positive or response.status_code not in (400, 422):
        return
    problem = response.json()
    unreadable = ("the body is not the JSON", "the declaration:", "Failed to deserialize")
    # JSON Schema takes 7.0 for an integer; this API wants it written as one.
    # Nor can a schema say what is no date or GPU, or that one of two forms is there.
    allowed = ("invalid type: floating point", "is no date", "is no GPU such", "are both there", "neither ", "more than any installation")
    if not any(words in problem["detail"] for words in allowed):
        assert not problem["detail"].startswith(unreadable), problem


@schemathesis.check
def refusals_are_problems(context, response, case):
    if response.status_code >= 400:
        problem = response.json()
        assert response.headers["content-type"] == ["application/problem+json"], response.headers
        assert problem["status"] == response.status_code, problem
        assert problem["type"].startswith("/problems/") and problem["detail"], problem
