"""torchrun. torch 1.13 looks for its flag NONE among the members of an enum, where Python 3.11 no
longer lists a value of zero, and then fails; here the number itself is converted."""

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.run import main

from_str = api.Std.from_str
api.Std.from_str = staticmethod(lambda text: api.Std(int(text)) if text.isdigit() else from_str(text))

if __name__ == "__main__":
    main()
