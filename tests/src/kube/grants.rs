//! The rights that the manifests give at the API server, and whether anybody lacked one.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use serde_json::json;

use super::{
    ControlPlane,
    manifests::manifests,
    rights::{AGENT, Asked, CONTROLLER, read},
};
use crate::client::wait_until;

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const NAMESPACE: &str = "nodefence";
/// How long a right may take to hold. The server's authorizer learns of it a moment after it was given.
const HOLDS: Duration = Duration::from_secs(60);

impl ControlPlane {
    /// Gives agents and controllers the rights of the manifests, and nobody else any. Waits until the rights hold.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn rights(&self) -> Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        self.object("/api/v1/namespaces", &namespace)?;
        for kind in ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"] {
            for (name, document) in manifests(kind)? {
                let namespace = document.lines().find_map(|line| line.strip_prefix("  namespace: "));
                let namespace = namespace.filter(|_| !kind.starts_with("Cluster"));
                let folder = namespace.map_or(ROLES.to_owned(), |name| format!("{ROLES}/namespaces/{name}"));
                self.api.apply_yaml(&format!("{folder}/{}s/{name}", kind.to_lowercase()), document)?;
            }
        }
        self.holds(AGENT, "list", "discovery.k8s.io", "endpointslices")?;
        self.holds(CONTROLLER, "list", "", "nodes")?;
        self.holds(CONTROLLER, "create", "coordination.k8s.io", "leases")
    }

    /// Gives a user the rights of a ClusterRole, in all namespaces or in one. The rights hold a moment later.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn bind(&self, user: &str, role: &str, namespace: Option<&str>) -> Result<()> {
        let (kind, folder) = match namespace {
            Some(name) => ("RoleBinding", format!("{ROLES}/namespaces/{name}/rolebindings")),
            None => ("ClusterRoleBinding", format!("{ROLES}/clusterrolebindings")),
        };
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": format!("{user}-{role}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        });
        self.object(&folder, &binding)
    }

    /// Waits until a user may do this in the agents' namespace.
    ///
    /// # Errors
    /// Fails if the user may not after a while, or with the server's error.
    pub fn holds(&self, user: &str, verb: &str, group: &str, resource: &str) -> Result<()> {
        let wanted = json!({"namespace": NAMESPACE, "verb": verb, "group": group, "resource": resource});
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": wanted},
        });
        let may =
            || self.api.create(REVIEWS, &review).is_ok_and(|answer| answer["status"]["allowed"] == true);
        wait_until(&format!("{user} may {verb} {resource}"), HOLDS, may).map(drop)
    }

    /// All requests that users other than the one with all rights have made since the server was last ready.
    ///
    /// # Errors
    /// Fails if the audit log cannot be read.
    pub fn asked(&self) -> Result<BTreeSet<Asked>> {
        read(self.folder(), self.heard())
    }

    /// Checks that agents and controllers lacked no right.
    ///
    /// # Errors
    /// The error names what they were refused.
    pub fn nobody_lacked_a_right(&self) -> Result<()> {
        let mut refused = self.asked()?;
        refused.retain(|asked| asked.code == 403 && [AGENT, CONTROLLER].contains(&asked.user.as_str()));
        ensure!(refused.is_empty(), "the API server refused: {refused:#?}");
        Ok(())
    }
}
