//! `nodefence crds`: the definitions of nodefence's kinds of objects, printed or applied.

use anyhow::Context as _;
use serde_json::json;

use super::{
    args::{CrdsArgs, Format},
    output::{columns, print, put},
};
use crate::{
    agent,
    crds::{self, Applied, Outcome},
    report::List,
    source::{ApiServer, kubernetes},
};

/// The context of an error that only the kernel can cause.
pub(super) const START_CLIENT: &str = "cannot start the client of the API server";

/// Carries out the verb.
pub(super) fn run(format: Format, args: &CrdsArgs) -> anyhow::Result<()> {
    if !args.apply {
        return put(definitions(format)?);
    }
    let runtime = agent::runtime().context(START_CLIENT)?;
    let applied = runtime.block_on(apply(&args.api_server.server()));
    // A name server that does not answer must not delay the end.
    runtime.shutdown_background();
    print(format, &List::from(applied?), table)
}

async fn apply(server: &ApiServer) -> anyhow::Result<Vec<Applied>> {
    let client = kubernetes::open(server).await?;
    Ok(crds::apply(&client).await?)
}

/// The definitions in a form that `kubectl apply` takes.
fn definitions(format: Format) -> anyhow::Result<String> {
    Ok(match format {
        Format::Json => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": crds::all() });
            serde_json::to_string_pretty(&list)? + "\n"
        }
        Format::Table | Format::Wide | Format::Name | Format::Yaml => crds::yaml()?,
    })
}

/// What became of each definition.
pub(super) fn table(applied: &List<Applied>) -> String {
    let rows = applied.items.iter().map(|row| [row.name.clone(), outcome(row.outcome).to_owned()]);
    columns(["CRD", "RESULT"], rows)
}

const fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Created => "created",
        Outcome::Changed => "changed",
        Outcome::Unchanged => "unchanged",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn kubectl_understands_what_is_printed() {
        let text = definitions(Format::Json).unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&list["apiVersion"], &list["kind"]), (&json!("v1"), &json!("List")));
        assert_eq!(list["items"], json!(crds::all()));
        assert!(text.ends_with("}\n"), "{text}");
        for format in [Format::Table, Format::Wide, Format::Yaml] {
            assert_eq!(definitions(format).unwrap(), crds::yaml().unwrap());
        }
    }
}
