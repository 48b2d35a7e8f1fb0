"""For whoever tests an agent: servers that lose replies in every way, and an agent that survives it.

async with (
    ScriptedVerifier([faults.cut_body(), faults.no_reply("reset")], keeps_keys=True) as verifier,
    ServerClient({"verifier": verifier.url}) as client,
    AgentServer(make_answer, client, "verifier") as agent,
):
    ...  # POST a row to f"{agent.url}/run", then look at verifier.executions
"""

from assay.client.testing import faults
from assay.client.testing.agent import AgentServer
from assay.client.testing.doors import dropping, refusing, silent
from assay.client.testing.exchange import Answer, Exchange, Request
from assay.client.testing.faults import Fault
from assay.client.testing.verifier import Execution, ScriptedVerifier

__all__ = [
    "AgentServer",
    "Answer",
    "Exchange",
    "Execution",
    "Fault",
    "Request",
    "ScriptedVerifier",
    "dropping",
    "faults",
    "refusing",
    "silent",
]
