"""A worker that says how it is when it is asked (tests.soak.says); otherwise tokenlane.worker.main.

python -m tests.soak.worker CHANNEL_FD
"""

from tests.soak import says
from tokenlane.worker.main import main

if __name__ == "__main__":
    says.listen()
    main()
