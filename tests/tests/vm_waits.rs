//! How long SCTP clients of a flagged node wait until their own socket reports an end. Runs in guests, since this machine's kernel may lack SCTP.
//!
//! SCTP's timers are set to a tenth of the kernel's defaults. With the defaults a client waits ten times as long as a figure says. [`long`] runs use the
//! defaults, except for idle clients, which would wait for more than ten minutes.

use std::{io, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nodefence_common::Reason;
use nodefence_tests::{
    Conn, Outcome,
    checks::SOON,
    client::Over::Sctp,
    long,
    waits::{Served, Waiting},
};

const PORT: u16 = 3868;
/// Timers of `net.sctp` with their defaults in milliseconds. The least value is set before the greatest one, since the kernel compares them.
const TIMERS: [(&str, u32); 4] =
    [("rto_min", 1_000), ("rto_initial", 3_000), ("rto_max", 60_000), ("hb_interval", 30_000)];
/// The factor by which the timers are shorter than the defaults.
const TENTH: u32 = 10;

/// An SCTP Service whose client has the default timers divided by `part`.
fn served(part: u32) -> Result<Served> {
    let served = Served::new("sctp", PORT, Some("sctp")).context("SCTP (module sctp)")?;
    for (name, default) in TIMERS {
        served.client().sysctl(&format!("sctp/{name}"), &(default / part).to_string())?;
    }
    Ok(served)
}

fn timed_out(how: &io::Result<()>) -> bool {
    how.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::ETIMEDOUT as i32))
}

/// Clients that are connected to node B before the flag, each with a text that says what it does.
fn connected(served: &Served, sends: bool) -> Result<Vec<(String, Conn)>> {
    let what = if sends { "asks" } else { "is idle" };
    let ways =
        [("to the pod itself", served.pod(&served.cluster.b)), ("through a Service", served.service())];
    let clients = ways.into_iter().map(|(way, at)| {
        let conn = Conn::over_to(Sctp, served.client(), at, "node-b", SOON)?;
        conn.limit(None)?;
        Ok((format!("SCTP, {what}, {way}"), conn))
    });
    clients.collect()
}

/// Checks that packets that met the cut were dropped, and that a client of another node still has its association.
fn dropped_and_others_go_on(served: &Served, other: &mut Conn) -> Result<()> {
    let dropped = served.agent.counter(Reason::Dropped)?;
    ensure!(dropped >= 20, "{dropped} were dropped: {}", served.agent.expect(&["counters"])?);
    ensure!(other.request() == Outcome::Answered, "a client of node C has no association any more");
    Ok(())
}

#[test]
fn clients_that_ask_and_new_ones_wait_for_retransmissions() -> Result<()> {
    let part = if long() { 1 } else { TENTH };
    let of_defaults = move |seconds: u64| Duration::from_secs(seconds) / part;
    let served = served(part)?;
    let mut other = Conn::over_to(Sctp, served.client(), served.pod(&served.cluster.c), "node-c", SOON)?;
    let clients = connected(&served, true)?;
    served.agent.flag("node-b")?;
    let waiting =
        clients.into_iter().map(|(what, mut conn)| Waiting::begin(what, move || conn.who().map(drop)));
    let waiting = waiting.collect::<Result<Vec<_>>>()?;
    let ns = Arc::clone(&served.cluster.a.pod);
    let b = served.pod(&served.cluster.b);
    let new = Waiting::begin("SCTP, new, to the pod itself", move || {
        Conn::over(Sctp, &ns, b, of_defaults(600)).map(drop)
    })?;
    for waiting in waiting {
        // The socket sends ten repetitions and heartbeats after 1 s, 2 s and so on up to 60 s, and none is answered.
        waiting.end()?.is(of_defaults(100), of_defaults(420), timed_out)?;
    }
    // The socket sends eight repetitions after 3 s, 6 s and so on up to 60 s, and ends 60 s after the last one. Each of these timers may be late by an eighth.
    new.end()?.is(of_defaults(333), of_defaults(333 * 9 / 8) + SOON, timed_out)?;
    dropped_and_others_go_on(&served, &mut other)
}

#[test]
fn idle_clients_wait_for_heartbeats() -> Result<()> {
    let served = served(TENTH)?;
    let mut other = Conn::over_to(Sctp, served.client(), served.pod(&served.cluster.c), "node-c", SOON)?;
    let clients = connected(&served, false)?;
    served.agent.flag("node-b")?;
    let waiting =
        clients.into_iter().map(|(what, mut conn)| Waiting::begin(what, move || conn.wait_for_ever()));
    for waiting in waiting.collect::<Result<Vec<_>>>()? {
        waiting.end()?.is(Duration::from_secs(300) / TENTH, Duration::from_secs(1_000) / TENTH, timed_out)?;
    }
    dropped_and_others_go_on(&served, &mut other)
}

/// A new client repeats its INIT, by the kernel's defaults after 3 s, 9 s, 21 s and 45 s. The INIT is balanced anew once its conntrack entry was deleted, and
/// may meet the flagged node each time. So now and then one of twelve clients is late, and five of twelve are late in one run of fifty thousand.
#[test]
fn new_clients_of_a_service_reach_another_endpoint() -> Result<()> {
    let served = served(1)?;
    served.agent.flag("node-b")?;
    let within = Duration::from_secs(45) + SOON;
    let new = (0..12).map(|at| {
        let ns = Arc::clone(&served.cluster.a.pod);
        let to = served.service();
        Waiting::begin(format!("SCTP, new, through a Service, {at}"), move || {
            Conn::over(Sctp, &ns, to, within).and_then(|mut conn| conn.who())
        })
    });
    let mut reached = Vec::new();
    for new in new.collect::<Result<Vec<_>>>()? {
        let ended = new.end()?;
        if let Ok(who) = &ended.how {
            ensure!(who == "node-c", "{who} answered");
            reached.push(ended.took);
        }
    }
    ensure!(reached.len() >= 8, "of 12 only these reached another endpoint: {reached:?}");
    let longest = reached.iter().max().copied().unwrap_or_default();
    ensure!(longest >= Duration::from_secs(3), "no INIT met the cut: the longest took {longest:?}");
    Ok(())
}
