"""Which API's form an error takes, where no endpoint has been reached."""

from master.edge.http.errors import ErrorBody, error_body
from master.edge.messages.error import messages_error_body
from master.edge.messages.reader import PATH as MESSAGES_PATH


def error_form(path: str) -> ErrorBody:
    is_anthropic = path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")
    return messages_error_body if is_anthropic else error_body
