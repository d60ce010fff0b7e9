use super::{Change, Error, Ipvs, Outcome, codec::Request};

/// Requests sent before their acknowledgements are read; they fit the socket's receive buffer.
const BATCH: usize = 64;

/// The request that makes a change.
fn request(change: &Change) -> Request<'_> {
    match change {
        Change::NewService(service) => Request::NewService(service),
        Change::SetService(service) => Request::SetService(service),
        Change::DeleteService(key) => Request::DeleteService(key),
        Change::NewDestination(key, destination) => Request::NewDestination(key, destination),
        Change::SetDestination(key, destination) => Request::SetDestination(key, destination),
        Change::DeleteDestination(key, address) => Request::DeleteDestination(key, *address),
    }
}

/// What the kernel's error number means for a change (`ip_vs_genl_set_cmd`, ip_vs_ctl.c).
fn outcome(change: &Change, errno: i32) -> Outcome {
    let of_service =
        matches!(change, Change::NewService(_) | Change::SetService(_) | Change::DeleteService(_));
    match errno {
        0 => Outcome::Done,
        libc::EEXIST => Outcome::Exists,
        libc::ESRCH => Outcome::NoService,
        // Of a service it means that there is no such scheduler or persistence engine.
        libc::ENOENT if !of_service => Outcome::NoDestination,
        other => Outcome::Refused(other),
    }
}

/// What came of several changes.
#[derive(Debug)]
#[must_use = "changes can fail one by one"]
pub struct Applied {
    /// One for each change, in their order.
    pub outcomes: Vec<Outcome>,
    /// Why some are [`Outcome::Unknown`], or all were refused.
    pub failure: Option<Error>,
}

impl Ipvs {
    /// Makes changes in their order, 64 in flight. Each takes the kernel's one IPVS lock for itself; who wants to leave others
    /// more of it gives fewer at a time.
    ///
    /// Goes on after changes that are refused; stops where the socket fails or the privilege is missing.
    pub fn apply(&mut self, changes: &[Change]) -> Applied {
        const REQUEST: &str = "change";
        let mut outcomes = vec![Outcome::Unknown; changes.len()];
        let mut failure = None;
        for (batch, places) in changes.chunks(BATCH).zip(outcomes.chunks_mut(BATCH)) {
            let mut requests = Vec::new();
            for change in batch {
                let sequence = self.channel.next_sequence();
                requests.extend_from_slice(&request(change).encode(self.family, sequence));
            }
            let mut forbidden = false;
            let sent = self.channel.pipeline(&requests, batch.len(), |place, errno| {
                forbidden |= errno == libc::EPERM;
                places[place] = outcome(&batch[place], errno);
            });
            match sent {
                _ if forbidden => failure = Some(Error::Permission),
                Ok(()) => continue,
                // What was lost stays unknown; the rest goes on.
                Err(source) if source.raw_os_error() == Some(libc::ENOBUFS) => {
                    failure = Some(Error::Io { request: REQUEST, source });
                    continue;
                }
                Err(source) => failure = Some(Error::Io { request: REQUEST, source }),
            }
            break;
        }
        Applied { outcomes, failure }
    }
}
