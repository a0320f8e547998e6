from ._rlaunch import Communicator as Communicator
from ._rlaunch import Error as Error
from ._rlaunch import PeerLost as PeerLost
from ._rlaunch import Received as Received
from ._rlaunch import Request as Request
from ._rlaunch import TimedOut as TimedOut

def breakpoint() -> None: ...
def init() -> Communicator: ...
