"""What tenants have in a rung."""

from tests.tokens.rungs.test_threads import Job
from tokenlane.tokens.rungs.tenant_bytes import TenantBytes


def job_of(tenant: str, size_bytes: int) -> Job:
    job = Job(size_bytes)
    job.tenant = tenant
    return job


def test_each_has_what_is_its_own() -> None:
    held = TenantBytes()
    jobs = [job_of("a", 10), job_of("b", 5), job_of("a", 1), job_of("", 100)]
    for job in jobs:
        held.begin(job)
    assert (held.of("a"), held.of("b"), held.of(""), held.of("c")) == (11, 5, 0, 0)
    for job in jobs:
        held.end(job)
    assert held._held == {}


def test_prompts_of_no_bytes_are_nobodys() -> None:
    """A completion without `prompt`, as one with embeddings is."""
    held = TenantBytes()
    jobs = [job_of("a", 0), job_of("a", 10), job_of("a", 0)]
    for job in jobs:
        held.begin(job)
    for job in (jobs[1], jobs[0], jobs[2]):
        assert held.of("a") == (10 if job is jobs[1] else 0)
        held.end(job)
    assert held._held == {}
