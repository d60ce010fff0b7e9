//! Shared parts of the integration tests: namespaces, topologies, servers and clients.
