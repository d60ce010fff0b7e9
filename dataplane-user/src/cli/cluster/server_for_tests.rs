//! An API server in memory, for the verbs' tests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use kube::{Client, client::Body};
use serde_json::{Value, json};

use super::{
    error::Error,
    samples::{member, settings},
    session::Session,
};

pub(super) const FLAGS: &str = "/apis/nodefence.io/v1alpha1/nodeflags";
pub(super) const MEMBERS: &str = "/apis/nodefence.io/v1alpha1/nodemembers";
pub(super) const SETTINGS: &str = "/apis/nodefence.io/v1alpha1/nodefencesettings/default";
pub(super) const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
pub(super) const PODS: &str = "/api/v1/namespaces/nodefence/pods";

/// What was asked: method, path with query, and body.
type Asked = (Method, String, Value);
/// The answers by method and path. Of several the last one stays.
type Answers = BTreeMap<(Method, String), Vec<(u16, Value)>>;

/// An API server in memory. An answer with the code 0 never comes.
#[derive(Clone, Default)]
pub(super) struct Server {
    answers: Arc<Mutex<Answers>>,
    pub(super) asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// With three members, no flag, settings that have agents cut, and a user.
    pub(super) fn new() -> Self {
        let this = Self::default();
        let members = ["node-a", "node-b", "node-c"].map(|name| member(name, None, None));
        this.answer(Method::GET, "/version", 200, json!({ "gitVersion": "v1.36.3" }));
        this.answer(Method::GET, MEMBERS, 200, list("NodeMember", json!(members)));
        this.flags(json!([]));
        this.answer(Method::GET, SETTINGS, 200, json!(settings()));
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {},
            "status": { "userInfo": { "username": "alice" } }
        });
        this.answer(Method::POST, REVIEWS, 201, review);
        this
    }

    pub(super) fn flags(&self, flags: Value) {
        self.answer(Method::GET, FLAGS, 200, list("NodeFlag", flags));
    }

    pub(super) fn answer(&self, method: Method, path: &str, code: u16, body: Value) {
        self.answers.lock().unwrap().insert((method, path.to_owned()), vec![(code, body)]);
    }

    pub(super) fn then(&self, method: Method, path: &str, code: u16, body: Value) {
        self.answers.lock().unwrap().entry((method, path.to_owned())).or_default().push((code, body));
    }

    pub(super) fn serve(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let bare = path.split('?').next().unwrap_or_default().to_owned();
        let mut answers = self.answers.lock().unwrap();
        if let Some(waiting) = answers.get_mut(&(method.clone(), bare.clone())) {
            return if waiting.len() > 1 { waiting.remove(0) } else { waiting[0].clone() };
        }
        // Objects are created as they are asked for, and deleted.
        if method == Method::POST && bare == FLAGS {
            let mut made = body.clone();
            made["metadata"]["name"] = json!("node-b-7xk2p");
            made["metadata"]["uid"] = json!("7");
            return (201, made);
        }
        if method == Method::DELETE {
            return (200, json!({ "kind": "Status", "status": "Success" }));
        }
        (404, failure(404, "NotFound", "it is not there"))
    }

    pub(super) async fn session(&self) -> Result<Session, Error> {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let path = head.uri.path_and_query().unwrap().to_string();
                let (code, answer) = this.serve(head.method.clone(), &path, &body);
                this.asked.lock().unwrap().push((head.method, path, body));
                if code == 0 {
                    std::future::pending::<()>().await;
                }
                let response =
                    Response::builder().status(code).header("Date", "Tue, 01 Dec 2026 08:00:00 GMT");
                Ok::<_, kube::Error>(response.body(Full::new(Bytes::from(answer.to_string()))).unwrap())
            }
        });
        Session::over(Client::new(service, "default")).await
    }

    /// The requests that change something, without their queries.
    pub(super) fn changes(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        let changing = asked
            .iter()
            .filter(|(method, path, _)| *method != Method::GET && path.split('?').next() != Some(REVIEWS));
        changing.map(|(method, path, _)| format!("{method} {}", path.split('?').next().unwrap())).collect()
    }

    /// The body of the last request of this method.
    pub(super) fn last(&self, method: Method) -> Asked {
        let asked = self.asked.lock().unwrap();
        asked.iter().rev().find(|(one, ..)| *one == method).cloned().unwrap()
    }
}

pub(super) fn list(kind: &str, items: Value) -> Value {
    json!({ "apiVersion": "nodefence.io/v1alpha1", "kind": format!("{kind}List"), "metadata": {}, "items": items })
}

pub(super) fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message })
}
