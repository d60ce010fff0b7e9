//! `doctor CODE`: the meaning of a warning of `status`, and whether this node's agent has it.

use std::{path::Path, time::Duration};

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    args::Format,
    exit::Exit,
    output::{causes, print, printable},
};
use crate::report::{
    Client, ClientError, Code, Document, ErrorKind, Explanation, Failure, Health, OrOff, Request, Status,
    Warning,
};

/// How long the agent may take to answer before it counts as hung.
const AGENT_PATIENCE: Duration = Duration::from_secs(5);

/// Asks the agent for its status. Returns the answer, and the id of the process that listens at the socket.
pub(super) fn ask(socket: &Path) -> (Result<OrOff<Status>, ClientError>, Option<i32>) {
    let mut pid = None;
    let answer = Client::connect(socket).and_then(|mut client| {
        pid = client.agent_pid();
        client.set_patience(AGENT_PATIENCE)?;
        client.ask(&Request::Status)
    });
    (answer, pid)
}

/// The status of an agent that runs. One that is off has none, and that is why.
pub(super) fn running(answer: Result<OrOff<Status>, ClientError>) -> Result<Status, ClientError> {
    match answer? {
        OrOff::Runs(status) => Ok(status),
        OrOff::Off(status) => {
            let why = format!("the agent is {}", status.off.text());
            Err(Failure::new(ErrorKind::Refused, why).into())
        }
    }
}

/// The explanation of a warning of `status`.
#[derive(Serialize, JsonSchema)]
pub(super) struct Explained {
    /// The code of the warning.
    code: Code,
    /// What is wrong, in a few words.
    title: &'static str,
    /// What the warning means.
    means: &'static str,
    /// What users notice.
    users: &'static str,
    /// What to do: a command for the shell, with notes after a `#`.
    remedy: String,
    /// The warning as this node has it now. `None` if the node does not have it, or if no agent answers.
    here: Option<Warning>,
    /// Why it is not known whether this node has the warning. `None` if the agent answers.
    unknown: Option<String>,
}

impl Document for Explained {
    const KIND: &'static str = "Explanation";
    const PRINTED_BY: &'static str = "nodefence doctor CODE";
}

impl Explained {
    pub(super) fn new(code: Code, answer: Result<Status, ClientError>) -> Self {
        let Explanation { title, means, users, .. } = code.explanation();
        let remedy = remedy(code, answer.as_ref().ok());
        let (here, unknown) = match answer {
            Ok(status) => {
                let warnings = Health::of(&status).warnings;
                (warnings.into_iter().find(|warning| warning.code == code), None)
            }
            Err(error) => (None, Some(causes(&error.into()))),
        };
        Self { code, title, means, users, remedy, here, unknown }
    }

    pub(super) fn text(&self) -> String {
        let here = match (&self.here, &self.unknown) {
            (Some(warning), _) => warning.message.clone(),
            (None, Some(why)) => format!("not known: {why}"),
            (None, None) => "this node has no such warning now".to_owned(),
        };
        let Self { code, title, means, users, remedy, .. } = self;
        let here = printable(&here);
        format!(
            "{code}   {title}\nmeans  {means}\nusers  {users}\nhere   {here}\ndo     {}\n",
            printable(remedy)
        )
    }
}

/// Explains a warning. An agent that does not answer is no error, since the explanation is the same everywhere.
pub(super) fn explain(code: Code, format: Format, socket: &Path) -> anyhow::Result<Exit> {
    let (answer, _) = ask(socket);
    print(format, &Explained::new(code, running(answer)), Explained::text)?;
    Ok(Exit::Ok)
}

/// The remedy for a warning, with this node's own names where its agent answers.
pub(super) fn remedy(code: Code, status: Option<&Status>) -> String {
    let remedy = code.explanation().remedy;
    let Some(status) = status else { return remedy.to_owned() };
    if let (Code::Replaced, Some(row)) = (code, &status.replacement) {
        return row.remedy.clone();
    }
    let file = match &status.cluster.file {
        None if remedy.contains("CLUSTER_FILE") => {
            return format!("nodefence status -o wide  # is {} cut off, or wrong?", status.cluster.source);
        }
        file => file.as_deref().unwrap_or_default(),
    };
    let concerned = status.interfaces.iter().find(|row| match code {
        Code::VirtualFunctions => row.virtual_functions != 0,
        _ => row.error.is_some(),
    });
    let present = u64::from(status.dataplane.max_backends);
    let room = present.saturating_add(status.dataplane.left_out).max(present.saturating_mul(2));
    remedy
        .replace("CLUSTER_FILE", file)
        .replace("PIN_DIR", &status.dataplane.pin_dir)
        .replace("DEVICE", concerned.map_or("DEVICE", |row| &row.name))
        .replace("ROOM", &room.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::report::sample::{changed, well};

    fn of(code: Code, change: impl FnOnce(&mut serde_json::Value)) -> Explained {
        Explained::new(code, Ok(changed(change)))
    }

    #[test]
    fn a_code_is_explained_with_this_node_s_numbers() {
        let text = of(Code::BackendsBeyondMaps, |status| status["dataplane"]["left_out"] = 3.into()).text();
        assert_eq!(
            text,
            "NF19   backends do not fit in the maps\n\
             means  There are more backends than the map has room for (--max-backends).\n\
             users  Traffic to backends that do not fit is not cut.\n\
             here   3 backends do not fit and pass: , ... (room for 8)\n\
             do     echo NODEFENCE_MAX_BACKENDS=16 >> /etc/default/nodefence && systemctl restart nodefence  # in a pod: the variable \
             in the chart's agent.extraEnv\n"
        );
        let text = of(Code::BackendsBeyondMaps, |_| ()).text();
        assert!(text.contains("\nhere   this node has no such warning now\n"), "{text}");
    }

    #[test]
    fn without_an_agent_it_is_explained_all_the_same() {
        let error = || ClientError::Unreachable { path: "/run/x".into(), source: ErrorKind::NotFound.into() };
        for &code in Code::ALL {
            let explained = Explained::new(code, Err(error()));
            assert!(explained.here.is_none(), "{code}");
            let text = explained.text();
            assert!(text.contains("\nhere   not known: no agent answers at /run/x"), "{text}");
            assert!(text.ends_with(&format!("\ndo     {}\n", code.explanation().remedy)), "{text}");
        }
    }

    #[test]
    fn remedies_name_what_this_node_has() {
        let well = || serde_json::from_value::<Status>(well()).expect("a status");
        for &code in Code::ALL {
            let remedy = remedy(code, Some(&well()));
            let left = ["CLUSTER_FILE", "PIN_DIR", "ROOM"].iter().find(|word| remedy.contains(**word));
            assert_eq!(left, None, "{remedy}");
        }
        let remedy_of = |code, change: &dyn Fn(&mut serde_json::Value)| remedy(code, Some(&changed(change)));
        let failed =
            remedy_of(Code::DeviceFails, &|status| status["interfaces"][0]["error"] = "no room".into());
        assert!(failed.starts_with("nodefence doctor --interface eth0  # "), "{failed}");
        let touched = remedy_of(Code::ViewTooOld, &|_| ());
        assert!(touched.starts_with("touch /c.yaml  # "), "{touched}");
        let objects = remedy_of(Code::ViewTooOld, &|status| status["cluster"]["file"] = ().into());
        assert!(objects.starts_with("nodefence status -o wide  # is the cluster file "), "{objects}");
    }
}
