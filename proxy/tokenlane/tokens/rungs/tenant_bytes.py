"""The bytes of prompts that each tenant has in a rung.

Invariant: a tenant that has none takes no memory. Where there are no tenants nothing is counted,
nor are jobs of 0 bytes.
"""

from tokenlane.tokens.job import TokenJob


class TenantBytes:
    """The bytes of prompts in one rung, by tenant."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def of(self, tenant: str) -> int:
        """Return a tenant's bytes."""
        return self._held.get(tenant, 0)

    def begin(self, job: TokenJob) -> None:
        """Count a job."""
        if job.tenant and job.size_bytes:
            self._held[job.tenant] = self.of(job.tenant) + job.size_bytes

    def end(self, job: TokenJob) -> None:
        """Stop counting a job."""
        if job.tenant and job.size_bytes:
            left_bytes = self._held.pop(job.tenant) - job.size_bytes
            if left_bytes:
                self._held[job.tenant] = left_bytes
