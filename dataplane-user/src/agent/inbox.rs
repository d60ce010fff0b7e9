//! What the owner of verdicts is told. Whoever tells it something waits for nobody: the lock is held for as long as a message takes to be put down.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use thiserror::Error;
use tokio::sync::oneshot;

use super::{outlets::Outlets, writer::Writer};
use crate::{
    cluster::NodeName,
    enforce::{Answer, Change, Input, NewClaim, NewView},
};

/// Requests that wait to be looked at, at most: a few microseconds are enough for each.
const REQUESTS: usize = 256;

/// Something to be answered.
#[derive(Debug)]
pub(super) enum Asked {
    /// A claim on a node.
    Claim(NodeName, Change),
    /// Another agent takes over.
    HandOver,
}

/// The tables are open.
pub(super) struct Opened {
    /// The node that this agent runs on.
    pub(super) own: NodeName,
    /// Writes from now on.
    pub(super) writer: Box<dyn Writer>,
    /// Where what follows goes.
    pub(super) outlets: Outlets,
}

/// One thing that it is told.
pub(super) enum Message {
    /// What needs no answer.
    Tell(Input),
    /// Another view, and what its source flags where that was read anew.
    View(Arc<NewView>, Option<Vec<(NodeName, NewClaim)>>),
    /// What does.
    Ask(Asked, oneshot::Sender<Answer>),
    /// From now on there is more to write than renewals.
    Open(Box<Opened>),
    /// No device reads maps of another size any more.
    ForgetOld,
    /// Whoever asks is told once all that was told before is carried out.
    Settle(oneshot::Sender<()>),
    /// Whoever asks is told once all claims are saved that were told before, or could not be.
    Saved(oneshot::Sender<()>),
    /// All verdicts are renewed once more, and nothing is done after that.
    End,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum NoAnswer {
    /// Too many ask.
    #[error("{REQUESTS} requests wait already; nothing was changed, try again")]
    Full,
    /// It has ended.
    #[error("the agent is ending; try again once another one runs")]
    Ended,
}

/// The messages that it has not taken yet.
#[derive(Default)]
pub(super) struct Inbox {
    queue: Mutex<Queue>,
    rung: Condvar,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    requests: usize,
    ended: bool,
}

impl Inbox {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, message: Message) {
        let mut queue = self.queue();
        // Whoever waits for an answer learns from the message's end that there is none.
        if queue.ended {
            return;
        }
        queue.messages.push_back(message);
        drop(queue);
        self.rung.notify_one();
    }

    /// Tells it something that needs no answer.
    pub(super) fn tell(&self, input: Input) {
        self.post(Message::Tell(input));
    }

    /// Gives it another view, in place of one that it has not taken yet. `flags`: what its source flags, where that was read anew.
    pub(super) fn view(&self, view: Arc<NewView>, flags: Option<Vec<(NodeName, NewClaim)>>) {
        let mut queue = self.queue();
        let is_view = |message: &Message| matches!(message, Message::View(..));
        let older = queue.messages.iter().position(is_view).and_then(|at| queue.messages.remove(at));
        drop(queue);
        let (view, older) = match older {
            Some(Message::View(skipped, flags)) => (view.in_place_of(&skipped), flags),
            _ => (view, None),
        };
        self.post(Message::View(view, flags.or(older)));
    }

    /// Asks it for something.
    ///
    /// # Errors
    /// Where there will be no answer.
    pub(super) fn ask(&self, asked: Asked) -> Result<oneshot::Receiver<Answer>, NoAnswer> {
        let (answer, answered) = oneshot::channel();
        {
            let mut queue = self.queue();
            if queue.ended {
                return Err(NoAnswer::Ended);
            }
            if queue.requests >= REQUESTS {
                return Err(NoAnswer::Full);
            }
            queue.requests += 1;
        }
        self.post(Message::Ask(asked, answer));
        Ok(answered)
    }

    /// The tables are open.
    pub(super) fn open(&self, opened: Opened) {
        self.post(Message::Open(Box::new(opened)));
    }

    /// No device reads maps of another size any more.
    pub(super) fn forget_old(&self) {
        self.post(Message::ForgetOld);
    }

    /// For whoever waits until all that was told before is carried out, as far as it can be now. Closed where it ends before.
    pub(super) fn settled(&self) -> oneshot::Receiver<()> {
        let (settled, receiver) = oneshot::channel();
        self.post(Message::Settle(settled));
        receiver
    }

    /// For whoever waits until all claims are saved, or could not be. Closed where it ends before.
    pub(super) fn saved(&self) -> oneshot::Receiver<()> {
        let (saved, receiver) = oneshot::channel();
        self.post(Message::Saved(saved));
        receiver
    }

    /// Ends it once it has renewed all verdicts.
    pub(super) fn end(&self) {
        self.post(Message::End);
    }

    /// For its thread alone: the next message.
    pub(super) fn take(&self) -> Option<Message> {
        let mut queue = self.queue();
        let message = queue.messages.pop_front()?;
        queue.requests -= usize::from(matches!(message, Message::Ask(..)));
        Some(message)
    }

    /// For its thread alone: waits for a message, at most so long.
    pub(super) fn wait(&self, longest: Duration) {
        let queue = self.queue();
        let waited = self.rung.wait_timeout_while(queue, longest, |queue| queue.messages.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// For its thread alone: nothing is taken any more.
    pub(super) fn close(&self) {
        let mut queue = self.queue();
        queue.ended = true;
        let left = std::mem::take(&mut queue.messages);
        drop(queue);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enforce::Source;

    #[test]
    fn requests_are_bounded_and_learn_that_nobody_answers() {
        let inbox = Inbox::default();
        let ask = || inbox.ask(Asked::Claim("b".into(), Change::Withdraw(Source::Cli)));
        let mut first = ask().unwrap();
        for _ in 1..REQUESTS {
            ask().unwrap();
        }
        assert_eq!(ask().unwrap_err(), NoAnswer::Full);
        inbox.tell(Input::Tick);
        assert!(matches!(inbox.take(), Some(Message::Ask(..))));
        assert!(first.try_recv().is_err());
        let mut last = ask().unwrap();
        inbox.close();
        assert_eq!(last.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(inbox.take().is_none());
        // Nobody will take it.
        inbox.tell(Input::Tick);
        assert!(inbox.take().is_none());
        assert_eq!(ask().unwrap_err(), NoAnswer::Ended);
    }
}
