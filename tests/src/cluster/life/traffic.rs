//! The incident's clients beside a step of the chart's life, with a node flagged that is well.

use anyhow::Result;

use super::{super::KubeCluster, check::Check};
use crate::incident::{
    Cluster as _, Run, Scenario, Way,
    judge::{Loss, Verdict, judge_with},
    observed::{Facts, Moments, Restored},
    record::{End, Kind, Record},
};

/// What beside the clients' log is known of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// All clients were connected.
    pub(super) began: u64,
    /// The flag existed.
    pub(super) flagged: u64,
    /// From now on the node may get traffic again.
    pub(super) freed: u64,
    /// The clients ended.
    pub(super) ended: u64,
}

/// The run of a step, for the incident's judge. Nothing is frozen: its times count from the flag.
pub(super) fn run(
    cluster: &KubeCluster,
    node: &str,
    times: Times,
    log: crate::incident::record::Log,
    restored: Restored,
) -> Result<Run> {
    let Times { began, flagged, freed, ended } = times;
    let moments = Moments { began, frozen: flagged, flagged, thawed: freed, ended };
    let stood_still = cluster.stood_still(began * 1_000, ended * 1_000)?;
    let facts = Facts {
        scenario: Scenario::Freeze,
        way: Way::Flagged,
        frozen: node.to_owned(),
        moments,
        stood_still,
        restored,
    };
    Ok(Run { facts, log })
}

/// Nothing is lost from 1 s after the flag on, and all else that the incident promises.
///
/// # Errors
/// Fails if the run proves nothing.
pub(super) fn nothing_is_lost(run: &Run, what: &str) -> Result<Check> {
    let of = |kinds: &[Kind]| {
        run.log
            .records
            .iter()
            .filter(|record| kinds.contains(&record.kind) && record.at >= run.facts.moments.judged())
            .count()
    };
    let in_words = |text: String| text.replace("the freeze", "the flag");
    Ok(match judge_with(run, Loss::None)? {
        Verdict::Held => {
            let evidence = format!(
                "0 of {} requests of clients with a connection, 0 of {} new connections, 0 of {} datagrams in {:.0} s",
                of(&[Kind::Keep]),
                of(&[Kind::New]),
                of(&[Kind::Udp, Kind::Fresh]),
                run.facts.moments.ended.saturating_sub(run.facts.moments.judged()) as f64 / 1e6,
            );
            Check::of(what, true, evidence)
        }
        Verdict::Broken(wrong) => Check::of(what, false, in_words(wrong)),
        Verdict::StoodStill(wrong) => Check::stood_still(what, in_words(wrong)),
    })
}

/// No request is answered by a pod of the flagged node while the cut is in force.
pub(super) fn nobody_answers_there(run: &Run, what: &str) -> Check {
    let moments = run.facts.moments;
    let in_force = moments.judged()..moments.thawed;
    let before = answers(run).filter(|record| record.ended() < moments.flagged).count();
    let meanwhile: Vec<&Record> = answers(run).filter(|record| in_force.contains(&record.ended())).collect();
    let first = meanwhile.first().map(|record| {
        format!(
            ", the first to {:?} client {}, {:.3} s after the flag",
            record.kind,
            record.client,
            moments.after_freeze(record.ended())
        )
    });
    let evidence = format!(
        "{} of its answers in {:.0} s{} ({before} before the flag)",
        meanwhile.len(),
        in_force.end.saturating_sub(in_force.start) as f64 / 1e6,
        first.unwrap_or_default()
    );
    Check::of(what, meanwhile.is_empty() && before > 0, evidence)
}

/// The flagged node's pods answer again, once they may.
pub(super) fn answers_again(run: &Run, what: &str) -> Check {
    let freed = run.facts.moments.thawed;
    let first = answers(run).filter(|record| record.at >= freed).map(Record::ended).min();
    let evidence = first.map_or_else(
        || "none of its pods answered".to_owned(),
        |at| format!("the first answer came {:.1} s later", at.saturating_sub(freed) as f64 / 1e6),
    );
    Check::of(what, first.is_some(), evidence)
}

/// The requests that pods of the flagged node answered.
fn answers(run: &Run) -> impl Iterator<Item = &Record> {
    let of_node = |record: &&Record| {
        record.end == End::Answered && record.node.as_deref() == Some(run.facts.frozen.as_str())
    };
    run.log.records.iter().filter(of_node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::life::check::{again, all_held, lines},
        incident::{
            Still,
            judge::sample::{Sample, at},
        },
    };

    fn is_held(check: &Check) -> bool {
        all_held(std::slice::from_ref(check))
    }

    #[test]
    fn a_single_loss_breaks_it() {
        let lost = |kind: Kind| {
            let mut run = Sample::held();
            // The incident's judge allows one of these.
            for client in 1_000..1_400 {
                run.add(kind, client, at(5_000), 3, End::Answered, Some("node-3"));
            }
            run.add(kind, 2_000, at(6_000), 3, End::Refused, None);
            run.run()
        };
        assert!(is_held(&nothing_is_lost(&Sample::held().run(), "nothing").expect("a run")));
        for kind in [Kind::New, Kind::Udp, Kind::Fresh] {
            let run = lost(kind);
            assert_eq!(judge_with(&run, Loss::Share).expect("a run"), Verdict::Held);
            let check = nothing_is_lost(&run, "nothing").expect("a run");
            let text = lines(std::slice::from_ref(&check));
            assert!(!is_held(&check) && text.contains("6.000 s after the flag, Refused"), "{text}");
            assert_eq!(again(&[check]), None);
        }
    }

    #[test]
    fn a_loss_while_a_guest_stood_still_is_repeated() {
        let mut run = Sample::held();
        run.add(Kind::New, 2_000, at(6_000), 3, End::Refused, None);
        let (from_ns, to_ns) = (at(5_900) * 1_000, at(6_050) * 1_000);
        run.facts().stood_still.push(Still { at: "node-1".to_owned(), from_ns, to_ns });
        let check = nothing_is_lost(&run.run(), "nothing").expect("a run");
        assert!(again(&[check]).is_some_and(|reason| reason.starts_with("node-1 stood still for 0.150 s")));
    }

    #[test]
    fn an_answer_of_the_flagged_node_breaks_it_until_the_flag_ends() {
        // Without an answer before the flag, silence would prove nothing.
        let answered = |ms: i64| {
            let mut run = Sample::held();
            run.add(Kind::New, 2_000, at(ms), 3, End::Answered, Some("node-2"));
            nobody_answers_there(&run.run(), "nobody")
        };
        assert!(is_held(&answered(1_900)) && is_held(&answered(10_000)));
        let check = answered(2_500);
        assert!(!is_held(&check));
        let text = lines(&[check]);
        assert!(
            text.contains("1 of its answers in 8 s, the first to New client 2000, 2.503 s after the flag"),
            "{text}"
        );
        let mut silent = Sample::held();
        silent.records().retain(|record| record.node.as_deref() != Some("node-2"));
        assert!(!is_held(&nobody_answers_there(&silent.run(), "nobody")));
    }

    #[test]
    fn the_node_answers_again_once_it_is_free() {
        let mut run = Sample::held();
        assert!(!is_held(&answers_again(&run.run(), "again")));
        run = Sample::held();
        run.add(Kind::New, 2_000, at(10_500), 100, End::Answered, Some("node-2"));
        let check = answers_again(&run.run(), "again");
        assert!(is_held(&check) && lines(&[check]).contains("the first answer came 0.6 s later"));
    }
}
