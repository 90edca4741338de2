"""What is under /v1/responses/{id}: nothing."""

from starlette.requests import Request
from starlette.responses import Response

from master.errors import ErrorKind, ServingError

PATH = "/v1/responses/{response_id:path}"
METHODS = ["GET", "POST", "DELETE"]


async def find_stored(request: Request) -> Response:
    """Raises ServingError NOT_FOUND."""
    asked = request.path_params["response_id"]
    message = f"response {asked[:200]!r} is not stored: responses are not kept here, whatever `store` was"
    raise ServingError(ErrorKind.NOT_FOUND, message)
