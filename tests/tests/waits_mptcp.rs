//! How long MPTCP clients of a flagged node wait until their own socket reports an end. The kernel does not report the reset of a subflow, and ends a
//! connection without subflows after `net.mptcp.close_timeout`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nodefence_common::Reason;
use nodefence_tests::{
    Conn, Outcome,
    checks::SOON,
    client::Over::Mptcp,
    waits::{Served, Waiting},
    watch::within,
};

/// The default of `net.mptcp.close_timeout`.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How late the end may be, since the kernel's timer is set anew at each segment. 1.3 s were measured.
const LATE: Duration = Duration::from_secs(5);
/// How early the end may be, since subflows may be reset before the test begins to count.
const EARLY: Duration = Duration::from_secs(1);

#[test]
fn established_clients_wait_for_the_close_timeout() -> Result<()> {
    let served = Served::new("tcp", 8443, Some("mptcp"))?;
    let b = served.pod(&served.cluster.b);
    let c = served.pod(&served.cluster.c);
    let mut clients = Vec::new();
    for (way, at) in [("to the pod itself", b), ("through a Service", served.service())] {
        for sends in [true, false] {
            let conn = Conn::over_to(Mptcp, served.client(), at, "node-b", SOON)?;
            conn.limit(None)?;
            clients.push((way, sends, conn));
        }
    }
    let mut other = Conn::over_to(Mptcp, served.client(), c, "node-c", SOON)?;
    served.agent.flag("node-b")?;
    let mut waiting = Vec::new();
    for (way, sends, mut conn) in clients {
        let what = if sends { "asks" } else { "is idle" };
        waiting.push(Waiting::begin(format!("MPTCP, {what}, {way}"), move || {
            if sends { conn.who().map(drop) } else { conn.wait_for_ever() }
        })?);
    }
    // The first SYN of MPTCP is a TCP SYN, so it is refused as TCP's is.
    let begun = Instant::now();
    let refused = Conn::over(Mptcp, served.client(), b, SOON).map(drop);
    ensure!(
        refused.as_ref().is_err_and(|error| Outcome::of(error) == Outcome::Refused),
        "new, to the pod itself: {refused:?}"
    );
    within("MPTCP, new, to the pod itself: refused", SOON, begun)?;
    for at in 0..10 {
        let who = Conn::over(Mptcp, served.client(), served.service(), SOON).and_then(|mut conn| conn.who());
        let who = who.with_context(|| format!("new, through the Service, {at}"))?;
        ensure!(who == "node-c", "new, through the Service, {at}: answered by {who}");
    }
    for waiting in waiting {
        let ended = waiting.end()?;
        let told = |how: &std::io::Result<()>| {
            how.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::ENOTCONN as i32))
        };
        ended.is(CLOSE_TIMEOUT - EARLY, CLOSE_TIMEOUT + LATE, told)?;
    }
    // The subflows were reset. A TCP socket would have reported that at once.
    ensure!(served.agent.counter(Reason::Reset)? > 0, "{}", served.agent.expect(&["counters"])?);
    ensure!(other.request() == Outcome::Answered, "a client of node C has no connection any more");
    Ok(())
}
