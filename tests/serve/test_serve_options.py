"""What a server is asked to be: its options, its limits, its address; refused before anything is started."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from omni_actors_asyncio.server import HttpLimits, ServeOptions
from omni_actors_asyncio.server._options import is_loopback, vllm_args
from omni_actors_asyncio.server._refusals import public
from omni_actors_asyncio.server._run import serve

from omni_actors import UsageError
from omni_actors.testing.rigs import speech

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, when vLLM imports it


def options(*extra: str, **more) -> ServeOptions:
    return ServeOptions(spec=speech(), extra=extra, say=lambda words: None, **more)


def test_vllms_server_gets_its_own_options_and_the_pipelines_name():
    args = vllm_args(options("--api-key", "secret", "--served-model-name", "a", "b", host="127.0.0.2", port=9))
    assert (args.api_key, args.served_model_name) == (["secret"], ["a", "b"])
    assert (args.host, args.port, args.model, args.uvicorn_log_level) == ("127.0.0.2", 9, "fake", "warning")
    assert vllm_args(options("--uvicorn-log-level", "info")).uvicorn_log_level == "info"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (("--max-model-len", "64"), "--max-model-len is not the server's to set"),
        (("--tensor-parallel-size", "2"), "--set"),
        (("--host", "0.0.0.0"), "--host belongs before the --"),
        (("--port", "80"), "--port belongs before the --"),
        (("--model", "x/y"), "the model is the pipeline's"),
        (("x/y",), "the model is the pipeline's"),
        (("--api-server-count", "2"), "--api-server-count is not"),
        (("--chat-template", "nowhere.jinja"), "refuses"),
    ],
)
def test_an_option_without_effect_is_refused(extra, words):
    with pytest.raises(UsageError, match=words):
        vllm_args(options(*extra))


def test_an_unknown_option_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as ended:
        vllm_args(options("--no-such-thing"))
    assert ended.value.code == 2
    assert "--no-such-thing" in capsys.readouterr().err


def test_a_port_in_use_is_said_before_any_engine_starts():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"127\.0\.0\.1 port {port}: .*in use"):
            serve(options(port=port))


def test_limits_are_given_by_name():
    assert HttpLimits.of(["body_bytes=10", "request_s=2.5"]) == HttpLimits(body_bytes=10, request_s=2.5)
    for given, words in (("x=1", "no limit 'x'"), ("body_bytes=many", "is a number"), ("of=1", "no limit")):
        with pytest.raises(UsageError, match=words):
            HttpLimits.of([given])


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("example.org", False), ("10.0.0.1", False)],
)  # fmt: skip
def test_loopback(host, loopback):
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("cannot read /srv/models/secret/config.json", "cannot read <path>"),
        ("first\nTraceback (most recent call last):", "first"),
        ("", ""),
        ("x" * 1000, "x" * 500),
        ("a/b or 1/2, see https://docs.example.org/errors", "a/b or 1/2, see https://docs.example.org/errors"),
    ],
)
def test_words_for_clients(words, said):
    assert public(words) == said


def test_the_command_explains_itself_without_loading_vllm():
    code = (
        "import sys\nfrom omni_actors.cli import main\ntry:\n    main()\nfinally:\n    assert 'vllm' not in sys.modules"
    )
    told = subprocess.run([sys.executable, "-c", code, "serve", "--help"], capture_output=True, text=True, check=True)
    assert "--host" in told.stdout
    assert "vLLM's own server" in told.stdout
