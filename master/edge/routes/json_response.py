"""A route's whole answer as JSON."""

from starlette.responses import Response

from master.edge.http.json_object import encode


def json_response(answer: object) -> Response:
    return Response(encode(answer), media_type="application/json")
