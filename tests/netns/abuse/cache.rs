//! Hosts that lack space, descriptors or trust: the cache of agents, temporary directories, limits.
