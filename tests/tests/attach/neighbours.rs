//! Programs of others keep running and keep their verdicts. Our program never replaces another one. If another replaces ours or runs before it, `status` says
//! so or the agent attaches ours again.
use aya::programs::TcAttachType;
use nodefence::dataplane::{self, Dataplane, ProgramAhead, TcChoice, TcMode};

use super::{
    others::{self, FIRST, LAST, NEXT, OK, SHOT, TCX_EGRESS},
    support::{
        Held, PEERS, Pair, arrives, attached, auto, ifindex, one_flagged, options, pin_dir, sh, tcx, up0,
    },
};

const HEALTHY: std::net::Ipv4Addr = PEERS[0];
const FLAGGED: std::net::Ipv4Addr = PEERS[1];

/// Opens the dataplane, writes the tables and attaches. Gives the programs that the status names as ahead.
fn start(pair: &Pair, choice: TcChoice) -> (Held<'_>, Vec<ProgramAhead>) {
    let mut held = Held::open(pair, options(choice));
    let status = held.with(|dataplane| {
        one_flagged().write(dataplane).unwrap();
        dataplane.devices.attach(&up0()).unwrap().remove(0)
    });
    assert_eq!(status.error, None);
    (held, status.programs_ahead)
}

/// The programs that a later look names as ahead.
fn look_again(held: &mut Held<'_>) -> Vec<ProgramAhead> {
    let status = held.with(|dataplane| dataplane.devices.interfaces().unwrap().remove(0));
    assert_eq!(status.error, None);
    status.programs_ahead
}

/// Kernels before 6.6 have no tcx. There `TcChoice::Auto` takes clsact, and only filters can be ahead of ours.
fn without_tcx(pair: &Pair) {
    assert_eq!(start(pair, TcChoice::Auto).1, []);
    assert!(pair.near.run(|| sh("tc filter show dev up0 egress")).contains("nodefence:nf_egress_l2"));
    assert!(arrives(pair, HEALTHY) && !arrives(pair, FLAGGED));
}

/// Checks that a kernel without tcx refuses a tcx program. This stands in for tests about tcx programs of others.
fn nobody_attaches(pair: &Pair) {
    pair.near.run(|| {
        let program = others::program(others::SCHED_CLS, "other", NEXT);
        let refused = others::try_attach(&program, ifindex("up0"), TCX_EGRESS, LAST);
        assert!(refused.is_err(), "a kernel without tcx took a program");
    });
}

#[test]
fn tcx_beside_a_program_that_was_there() {
    let pair = Pair::new("tcxbefore");
    if auto() == TcMode::Clsact {
        return without_tcx(&pair);
    }
    let other = pair.near.run(|| others::tcx("other", NEXT, TCX_EGRESS, LAST));
    let (_held, ahead) = start(&pair, TcChoice::Auto);
    assert_eq!(ahead, [], "ours goes first");
    assert_eq!(pair.near.run(|| tcx("up0", TcAttachType::Egress)), ["nf_egress_l2", "other"]);
    assert!(arrives(&pair, HEALTHY) && !arrives(&pair, FLAGGED));
    drop(other);
    // A program behind ours may still drop the packets that ours passes.
    let other = pair.near.run(|| others::tcx("deny", SHOT, TCX_EGRESS, LAST));
    assert!(!arrives(&pair, HEALTHY), "the other's verdict holds");
    drop(other);
    assert!(arrives(&pair, HEALTHY));
}

#[test]
fn tcx_behind_a_program_that_came_later_is_said_and_not_fought() {
    let pair = Pair::new("tcxafter");
    if auto() == TcMode::Clsact {
        return nobody_attaches(&pair);
    }
    let (mut held, ahead) = start(&pair, TcChoice::Auto);
    assert_eq!(ahead, []);
    let other = pair.near.run(|| others::tcx("allow", OK, TCX_EGRESS, FIRST));
    assert!(arrives(&pair, FLAGGED), "a program that returns OK ahead of ours hides packets from it");
    for _ in 0..2 {
        let ahead = look_again(&mut held);
        assert_eq!(ahead.len(), 1, "{ahead:?}");
        assert_eq!((ahead[0].name.as_str(), ahead[0].r#where.as_str()), ("allow", "tcx egress"));
        assert_ne!(ahead[0].id, 0);
        assert_eq!(pair.near.run(|| tcx("up0", TcAttachType::Egress)), ["allow", "nf_egress_l2"]);
    }
    drop(other);
    assert!(!arrives(&pair, FLAGGED));
    assert_eq!(look_again(&mut held), []);
}

#[test]
fn tcx_runs_before_clsact_filters_which_keep_their_verdicts() {
    let pair = Pair::new("tcxcls");
    if auto() == TcMode::Clsact {
        return nobody_attaches(&pair);
    }
    pair.near.run(|| {
        sh("tc qdisc add dev up0 clsact");
        others::filter(1, 1, OK);
    });
    let (held, ahead) = start(&pair, TcChoice::Auto);
    assert_eq!(ahead, []);
    assert!(arrives(&pair, HEALTHY) && !arrives(&pair, FLAGGED));
    drop(held);
    pair.near.run(|| {
        sh("tc filter del dev up0 egress prio 1");
        others::filter(1, 1, SHOT);
    });
    assert!(!arrives(&pair, HEALTHY), "the filter's verdict holds");
    pair.near.run(|| {
        dataplane::detach(&pin_dir()).unwrap();
        assert!(sh("tc qdisc show dev up0").contains("clsact"), "the qdisc was not ours");
        assert!(sh("tc filter show dev up0 egress").contains("bytecode"), "the filter was not ours");
    });
    assert!(!arrives(&pair, HEALTHY));
}

#[test]
fn clsact_beside_filters_of_every_order() {
    let pair = Pair::new("clsorder");
    pair.near.run(|| {
        sh("tc qdisc add dev up0 clsact");
        others::filter(1, 1, NEXT);
        others::filter(7, 1, NEXT);
    });
    // Of filters with one priority the newest runs first (net/sched/cls_bpf.c, list_add_rcu).
    let (mut held, ahead) = start(&pair, TcChoice::Clsact);
    assert_eq!(ahead, []);
    assert!(arrives(&pair, HEALTHY) && !arrives(&pair, FLAGGED));
    pair.near.run(|| others::filter(9, 1, SHOT));
    assert!(!arrives(&pair, HEALTHY), "a filter behind ours keeps its verdict");
    pair.near.run(|| sh("tc filter del dev up0 egress prio 9"));
    // A filter that comes later at the same priority runs before ours. `status` names it, and the agent does not move ours.
    pair.near.run(|| others::filter(1, 2, OK));
    assert!(arrives(&pair, FLAGGED));
    let ahead = look_again(&mut held);
    assert_eq!(ahead.len(), 1, "{ahead:?}");
    assert_eq!(ahead[0].r#where, "clsact egress prio 1");
    let filters = pair.near.run(|| sh("tc filter show dev up0 egress"));
    assert_eq!(filters.matches("bytecode").count(), 3, "{filters}");
    drop(held);
    pair.near.run(|| {
        dataplane::detach(&pin_dir()).unwrap();
        let filters = sh("tc filter show dev up0 egress");
        assert_eq!((filters.matches("bytecode").count(), filters.matches("nodefence").count()), (3, 0));
        assert!(sh("tc qdisc show dev up0").contains("clsact"));
    });
}

#[test]
fn clsact_behind_a_filter_of_another_kind() {
    let pair = Pair::new("clskind");
    pair.near.run(|| {
        sh("tc qdisc add dev up0 clsact");
        sh("tc filter add dev up0 egress protocol ip prio 1 u32 match u32 0xffffffff 0xffffffff classid 1:1");
    });
    let (_, ahead) = start(&pair, TcChoice::Clsact);
    let is_u32 = |program: &ProgramAhead| program.name == "u32" && program.id == 0;
    assert!(!ahead.is_empty() && ahead.iter().all(is_u32), "{ahead:?}");
    assert!(arrives(&pair, HEALTHY) && !arrives(&pair, FLAGGED));
    // A new process finds our filter at the priority that it has.
    assert_eq!(start(&pair, TcChoice::Clsact).1, ahead);
    assert_eq!(pair.near.run(|| attached("up0")).len(), 1);
}

#[test]
fn clsact_with_a_handle_that_others_use() {
    let pair = Pair::new("clshandle");
    pair.near.run(|| {
        sh("tc qdisc add dev up0 clsact");
        others::filter(1, 0x6e66, NEXT);
    });
    assert_eq!(start(&pair, TcChoice::Clsact).1.len(), 1);
    assert!(arrives(&pair, HEALTHY) && !arrives(&pair, FLAGGED));
    let filters = pair.near.run(|| sh("tc filter show dev up0 egress"));
    assert_eq!(filters.matches("bytecode").count(), 1, "{filters}");
}

/// Another tool replaces our filter by `tc filter replace`. Its filter stays, and the agent adds ours again at another place.
#[test]
fn clsact_whose_filter_was_replaced() {
    let pair = Pair::new("clsreplaced");
    let (mut held, _) = start(&pair, TcChoice::Clsact);
    let theirs = pair.near.run(|| {
        let shown = sh("tc filter show dev up0 egress");
        let mut words = shown.split_whitespace().skip_while(|word| *word != "pref");
        let priority = words.nth(1).unwrap().to_owned();
        let mut words = shown.split_whitespace().skip_while(|word| *word != "handle");
        let handle = words.nth(1).unwrap().to_owned();
        // This filter lets each packet go on to the next filter. It has `skip_hw` like ours: the kernel replaces no filter by one whose choice differs.
        let filter = "bpf da skip_hw bytecode '1,6 0 0 4294967295'";
        sh(&format!("tc filter replace dev up0 egress pref {priority} handle {handle} {filter}"));
        format!("pref {priority} bpf chain 0 handle {handle}")
    });
    let shown = pair.near.run(|| sh("tc filter show dev up0 egress"));
    assert!(shown.contains("bytecode") && !shown.contains("nodefence"), "{shown}");
    look_again(&mut held);
    assert!(arrives(&pair, HEALTHY) && !arrives(&pair, FLAGGED));
    let shown = pair.near.run(|| sh("tc filter show dev up0 egress"));
    assert!(shown.contains(&theirs) && shown.contains("bytecode"), "{shown}");
    assert_eq!(shown.matches("nodefence:nf_egress_l2").count(), 1, "{shown}");
}

/// Our programs need the kernel's maps, so the kernel must not offer them to a device for offload.
#[test]
fn clsact_is_offered_to_no_device() {
    let pair = Pair::new("clshw");
    let shown = || pair.near.run(|| sh("tc filter show dev up0 egress"));
    let (held, _) = start(&pair, TcChoice::Clsact);
    let first = shown();
    assert!(first.contains("nodefence:nf_") && first.contains(" skip_hw "), "{first}");
    drop(held);
    // This filter is one that an older agent without `skip_hw` left. The kernel does not replace a filter by one with another choice, and packets would pass
    // while the filter is removed and added. So the new agent keeps the filter without `skip_hw`.
    pair.near.run(|| {
        let egress = sh("tc filter show dev up0 egress");
        let program = egress.split_once(" id ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
        others::pin(program, "/sys/fs/bpf/nodefence:older");
        sh("tc filter del dev up0 egress");
        let handle = "0x6e66";
        sh(&format!(
            "tc filter add dev up0 egress protocol all prio 1 handle {handle} bpf da object-pinned /sys/fs/bpf/nodefence:older"
        ));
    });
    let before = shown();
    assert!(before.contains(" nodefence:older") && !before.contains("skip_hw"), "{before}");
    let (_held, _) = start(&pair, TcChoice::Clsact);
    let after = shown();
    assert!(after.contains("nodefence:nf_egress_l2") && !after.contains("older"), "{after}");
    assert!(!after.contains("skip_hw"), "{after}");
    assert!(arrives(&pair, HEALTHY) && !arrives(&pair, FLAGGED));
}

#[test]
fn clsact_names_tcx_programs_as_ahead() {
    let pair = Pair::new("clstcx");
    if auto() == TcMode::Clsact {
        return nobody_attaches(&pair);
    }
    let (mut held, ahead) = start(&pair, TcChoice::Clsact);
    assert_eq!(ahead, []);
    let _egress = pair.near.run(|| others::tcx("allow", OK, TCX_EGRESS, LAST));
    let ahead = look_again(&mut held);
    let ahead: Vec<_> =
        ahead.iter().map(|program| (program.name.as_str(), program.r#where.as_str())).collect();
    assert_eq!(ahead, [("allow", "tcx egress")]);
}

#[test]
fn an_ingress_qdisc_leaves_no_room_for_clsact() {
    let pair = Pair::new("clsingress");
    pair.near.run(|| {
        sh("tc qdisc add dev up0 ingress");
        let mut dataplane = Dataplane::open(&options(TcChoice::Clsact)).unwrap();
        let status = dataplane.devices.attach(&up0()).unwrap().remove(0);
        assert!(status.error.is_some_and(|error| error.contains("clsact")));
        drop(dataplane);
        dataplane::detach(&pin_dir()).unwrap();
        assert!(sh("tc qdisc show dev up0").contains("ingress"));
        if auto() == TcMode::Clsact {
            return;
        }
        // A tcx program needs no qdisc.
        let mut dataplane = Dataplane::open(&options(TcChoice::Auto)).unwrap();
        let status = dataplane.devices.attach(&up0()).unwrap().remove(0);
        assert_eq!((status.error, status.tc), (None, Some(TcMode::Tcx)));
    });
}
