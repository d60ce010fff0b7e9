//! How long clients waited for answers.

use std::collections::BTreeMap;

use crate::incident::{
    observed::Run,
    record::{End, Kind, Record},
};

/// No client waits longer than this from the moment on from which the promises hold.
pub const LONGEST_WAIT_US: u64 = 2_000_000;

/// A client's wait: from the first request without an answer to the next answer. A reset alone ends no wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The kind of the client.
    pub kind: Kind,
    /// The number of the client.
    pub client: u32,
    /// When the first request began.
    pub from: u64,
    /// When the answer came, or the client ended.
    pub to: u64,
    /// The node that did not answer the first request, as far as it is known.
    pub node: Option<String>,
    /// How the first request ended.
    pub first: End,
    /// Whether an answer came.
    pub answered: bool,
}

impl Wait {
    /// The part of the wait in which the promises hold, in microseconds, without the time in which the client itself stood still.
    pub fn judged(&self, run: &Run) -> u64 {
        run.waited(self.from.max(run.facts.moments.judged()), self.to)
    }
}

/// The waits of all clients with one connection, and of all new connections.
pub fn waits(run: &Run) -> Vec<Wait> {
    let mut open: BTreeMap<u32, Wait> = BTreeMap::new();
    let mut waits = Vec::new();
    for record in &run.log.records {
        match record.kind {
            Kind::Keep => {
                let begun = open.remove(&record.client).unwrap_or_else(|| of(record));
                let wait = Wait { to: record.ended(), answered: record.end == End::Answered, ..begun };
                if wait.answered {
                    waits.push(wait);
                } else {
                    open.insert(record.client, wait);
                }
            }
            Kind::New => waits.push(of(record)),
            Kind::Idle | Kind::Udp | Kind::Fresh => {}
        }
    }
    waits.extend(open.into_values());
    waits
}

fn of(record: &Record) -> Wait {
    Wait {
        kind: record.kind,
        client: record.client,
        from: record.at,
        to: record.ended(),
        node: record.node.clone(),
        first: record.end,
        answered: record.end == End::Answered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::judge::sample::{Sample, at};

    #[test]
    fn a_wait_lasts_from_the_first_request_without_an_answer_to_the_next_answer() {
        let mut run = Sample::new();
        run.keep(3, 0, at(-1_000), 5, End::Answered, Some("node-2"));
        run.keep(3, 0, at(-500), 1_600, End::Reset, Some("node-2"));
        run.keep(3, 1, at(1_100), 2, End::Refused, None);
        run.keep(4, 0, at(1_150), 3, End::Answered, Some("node-3"));
        run.keep(3, 2, at(1_300), 900, End::Answered, Some("node-3"));
        run.keep(3, 2, at(2_300), 700, End::Waiting, Some("node-3"));
        let run = run.run();
        let waits: Vec<Wait> = waits(&run).into_iter().filter(|wait| wait.client == 3).collect();
        let spans: Vec<_> = waits.iter().map(|wait| (wait.from, wait.to, wait.answered)).collect();
        let expected =
            [(at(-1_000), at(-995), true), (at(-500), at(2_200), true), (at(2_300), at(3_000), false)];
        assert_eq!(spans, expected);
        assert_eq!((waits[1].node.as_deref(), waits[1].first), (Some("node-2"), End::Reset));
        // The promises hold from 2 s after the freeze.
        assert_eq!(waits[1].judged(&run), 200_000);
        assert_eq!(waits[0].judged(&run), 0);
    }
}
