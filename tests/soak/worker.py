"""A worker that says how it is when it is asked (tests.soak.says); otherwise proxy.worker.

python -m tests.soak.worker CHANNEL_FD
"""

from proxy.worker import main
from tests.soak import says

if __name__ == "__main__":
    says.listen()
    main()
