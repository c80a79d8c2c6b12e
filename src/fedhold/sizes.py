"""Every size that chooses a path or cuts the work, in one table, with what stands behind it. None changes what a rule finds.

Numbers are those of all clients together, unless it says otherwise.
"""

from __future__ import annotations

# How data is cut. A tile of 4 MB is read in long runs of memory, and little is lost to the calls that it takes.
TILE = 2**20  # numbers of a tile
SMALL = (
    2**19
)  # Up to so many numbers one thread reads faster than several would share. Products of all pairs need memory, too.
TILES = 4  # Threads share data of few numbers in so many tiles,
PARTS = 8  # and each thread takes this part of all tiles at a time.
ALONE = 2**18  # numbers of a tile from which on threads, runs and compiled loops pay
CACHE = 2**17  # numbers that are read twice in a row stay in the second cache,
NEAR_CACHE = 2**13  # and so many in the first.
TURNED = 256  # columns of a matrix in Fortran order that are copied at a time
FILES = 2**28  # bytes that all threads gather at a time from files: 256 KiB from each of 500
BLOCK = 2**26  # bytes of a block on a cluster
COUNTED = 2**14  # numbers of one client whose weighted medians are found at a time
COMPARED = 2**16  # numbers of two vectors that are compared at a time

# What is copied or sorted.
LITTLE = (
    2**22
)  # Up to so many numbers, small arrays are copied to one: a pass over 160 arrays takes longer than the copy.
PART = 16  # Of more numbers, small arrays are copied if they are at most this part of all.
SORTED = 1024  # To sort up to so many numbers takes no longer than a partition.
NETWORK, COMPILED_NETWORK = 48, 160  # clients up to which a network sorts columns faster than a sort, and compiled

# Pairs of clients.
FEW = 64  # clients: products of all pairs take less time than the three to five passes of a solve;
SEVERAL = 128  # the same for rules that need directions, too, and compiled products are as fast as those of BLAS.
PAIRED = 1500  # In files or on a cluster, products of all pairs take under 60 MB, and save five passes or more.
MAX_PAIRED = 4096  # All pairs are 134 MB; beyond,
ROWS_OF_PAIRS = 2**22  # so many of them, 32 MB, are there at a time.

# A sample of columns, which only guides.
SAMPLED = 256  # Distances over so many columns are right to some percent;
FEWER_SAMPLED = 64  # so many choose the reference,
LEAST_SAMPLED = 16  # and so few of very many clients, whose sample stays in CACHE.
