//! A small cluster: a client outside, node A that forwards, nodes B and C with the backends, and a bridge between the nodes.
//!
//! ```text
//!  client 192.0.2.2 ---- 192.0.2.1 node A 10.2.0.11 ---+--- 10.2.0.12 node B --- pod 10.244.2.2
//!                           |                       bridge
//!                        pod 10.244.1.2                +--- 10.2.0.13 node C --- pod 10.244.3.2
//! ```
//! The same with IPv6: 2001:db8::/64 outside, fd00:2::/64 between the nodes, fd00:244:N::/64 for pods.

mod cluster;
mod file;
mod links;
mod proxy;

use std::sync::Arc;

use anyhow::{Context as _, Result};
pub use cluster::{Cluster, Family, NODE_PORT_OF_ITS_OWN, Node, Options, Overlay, Place, Proxy, Service};

use crate::Netns;

impl Cluster {
    /// Builds the cluster and starts the servers on B and C.
    ///
    /// # Errors
    /// Fails without root, or if this kernel lacks a device type or an nftables expression. The error names the command.
    pub fn new(options: Options) -> Result<Self> {
        let mut this = Self::without_servers(options)?;
        this.b.serve()?;
        this.c.serve()?;
        Ok(this)
    }

    /// Builds the cluster without servers, for a test that brings its own.
    ///
    /// # Errors
    /// Fails as [`Cluster::new`] does.
    pub fn without_servers(options: Options) -> Result<Self> {
        let mut this = Self {
            options,
            client: Arc::new(Netns::with_lo_down("client")?),
            a: Node::new("node-a", 1)?,
            b: Node::new("node-b", 2)?,
            c: Node::new("node-c", 3)?,
            fabric: Arc::new(Netns::with_lo_down("fabric")?),
            _tun: None,
        };
        this._tun = links::build(&this).context("links of the cluster")?;
        proxy::build(&this).context("proxy of node A")?;
        Ok(this)
    }
}
