//! The kinds of objects that nodefence adds to the API server: their types, and their definitions (CRDs), which are printed or applied.

mod end;
mod flag;
mod member;
mod raw;
mod settings;

pub use flag::{FlagCause, FlagState, NodeFlag, NodeFlagSpec, NodeFlagStatus};
pub use member::{NodeMember, NodeMemberSpec};
pub(crate) use raw::Raw;
pub(crate) use settings::share;
pub use settings::{NodefenceSettings, NodefenceSettingsSpec, OptOuts, Pause, SETTINGS_NAME, SettingsMode};

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, CustomResourceExt as _, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::wait::{await_condition, conditions},
};
use schemars::JsonSchema;
use serde::Serialize;

/// Who owns the fields of the definitions (server-side apply).
const MANAGER: &str = "nodefence";
/// How long the API server may take to apply and establish a definition.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a definition was not applied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not answer a request, or refused it.
    #[error("CRD {name}: cannot {what} it")]
    Request {
        /// The name of the definition.
        name: String,
        /// What was to be done with the definition.
        what: &'static str,
        /// What the API server or the client says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The API server did not answer, or does not serve the objects.
    #[error("CRD {name}: it was not applied and established within {} s", PATIENCE.as_secs())]
    NotEstablished {
        /// The name of the definition.
        name: String,
    },
}

impl Error {
    fn request(name: &str, what: &'static str, error: kube::Error) -> Self {
        let source: Box<dyn std::error::Error + Send + Sync> = match error {
            // The text of the error around the answer has the whole answer once more, in Rust's form.
            kube::Error::Api(answer) => answer,
            error => Box::new(error),
        };
        Self::Request { name: name.to_owned(), what, source }
    }
}

/// What became of a definition at the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The API server did not have the definition.
    Created,
    /// The API server had another version of the definition.
    Changed,
    /// The API server had the same definition.
    Unchanged,
}

impl Outcome {
    fn of(before: Option<&CustomResourceDefinition>, after: &CustomResourceDefinition) -> Self {
        match before {
            None => Self::Created,
            // The rest changes by itself: the status, and the list of who owns which field.
            Some(before) if before.spec == after.spec => Self::Unchanged,
            Some(_) => Self::Changed,
        }
    }
}

/// A definition that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Applied {
    /// The name of the definition, as `kubectl get crds` has it.
    pub name: String,
    /// What became of the definition.
    pub outcome: Outcome,
}

/// The definitions of all kinds, always in the same order.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![NodeMember::crd(), NodeFlag::crd(), NodefenceSettings::crd()]
}

/// The definitions of all kinds as YAML, a document each.
///
/// # Errors
/// Where a definition has no form in YAML.
pub fn yaml() -> Result<String, serde_saphyr::SerializeError> {
    serde_saphyr::to_string_multiple(&all())
}

/// Applies all definitions, and waits until the API server serves objects of each kind. Fields that others have changed get their values back.
///
/// # Errors
/// Where the API server does not answer, refuses a definition, or does not establish it within a minute.
pub async fn apply(client: &Client) -> Result<Vec<Applied>, Error> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut applied = Vec::new();
    for definition in all() {
        let one = tokio::time::timeout(PATIENCE, apply_one(&definitions, &definition)).await;
        applied.push(one.map_err(|_| Error::NotEstablished { name: definition.name_any() })??);
    }
    Ok(applied)
}

async fn apply_one(
    definitions: &Api<CustomResourceDefinition>,
    definition: &CustomResourceDefinition,
) -> Result<Applied, Error> {
    let name = definition.name_any();
    let before = definitions.get_opt(&name).await;
    let before = before.map_err(|error| Error::request(&name, "read", error))?;
    let params = PatchParams::apply(MANAGER).force();
    let after = definitions.patch(&name, &params, &Patch::Apply(definition)).await;
    let after = after.map_err(|error| Error::request(&name, "apply", error))?;
    let established = await_condition(definitions.clone(), &name, conditions::is_crd_established());
    match established.await {
        Ok(_) => Ok(Applied { name, outcome: Outcome::of(before.as_ref(), &after) }),
        Err(error) => Err(Error::Request { name, what: "watch", source: Box::new(error) }),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_documents_are_the_definitions() {
        let yaml = yaml().unwrap();
        let begin = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n";
        assert!(yaml.starts_with(begin) && yaml.ends_with('\n'), "{yaml}");
        let read: Vec<Value> = serde_saphyr::from_multiple(&yaml).unwrap();
        let definitions = all();
        assert_eq!(json!(read), json!(definitions));
        let names: Vec<String> = definitions.iter().map(|definition| definition.name_any()).collect();
        let kinds = ["nodemembers", "nodeflags", "nodefencesettings"];
        assert_eq!(names, kinds.map(|kind| format!("{kind}.nodefence.io")));
    }

    #[test]
    fn what_became_of_a_definition_depends_on_its_content_alone() {
        let applied = NodeMember::crd();
        assert_eq!(Outcome::of(None, &applied), Outcome::Created);
        let mut before = applied.clone();
        before.metadata.resource_version = Some("7".to_owned());
        before.status = Some(Default::default());
        assert_eq!(Outcome::of(Some(&before), &applied), Outcome::Unchanged);
        before.spec.names.short_names = None;
        assert_eq!(Outcome::of(Some(&before), &applied), Outcome::Changed);
    }

    #[test]
    fn an_error_has_the_answer_s_own_words() {
        let answer = Status { message: "it is forbidden".to_owned(), ..Status::default() };
        let error = Error::request("a.nodefence.io", "apply", kube::Error::Api(Box::new(answer)));
        assert_eq!(error.to_string(), "CRD a.nodefence.io: cannot apply it");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.starts_with("it is forbidden"), "{source}");
    }
}
