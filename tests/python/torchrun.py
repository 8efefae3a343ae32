"""torchrun. torch 1.13 looks for its flag NONE among the members of an enum, where Python 3.11 no
longer lists a value of zero, and then fails; here the number itself is converted. It looks every
five seconds whether the ranks have ended; here more often."""

import sys

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.run import main

from_str = api.Std.from_str
api.Std.from_str = staticmethod(lambda text: api.Std(int(text)) if text.isdigit() else from_str(text))

if __name__ == "__main__":
    main(["--monitor_interval", "0.1", *sys.argv[1:]])
