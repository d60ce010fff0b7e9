//! A client of an API server, which sends JSON over HTTPS from one namespace.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use ureq::{
    Agent, Body,
    http::{Request, Response},
    tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem},
};

use crate::Netns;

/// The time limit of a request. Even on a busy machine an answer takes longer only if something is wrong.
const LIMIT: Duration = Duration::from_secs(60);

/// The name of this client in `managedFields`.
const MANAGER: &str = "nodefence-tests";

/// A client with all rights.
#[derive(Debug, Clone)]
pub struct Api {
    ns: Arc<Netns>,
    agent: Agent,
    url: String,
    token: String,
}

impl Api {
    /// A client in `ns` that sends `token`. It trusts the certificates in the PEM file `certificates`, or any certificate if that is `None`. It does not
    /// connect yet.
    ///
    /// # Errors
    /// Fails if the file cannot be read or holds no certificate.
    pub fn new(ns: &Arc<Netns>, url: &str, certificates: Option<&Path>, token: &str) -> Result<Self> {
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let tls = match certificates {
            Some(file) => tls.root_certs(RootCerts::new_with_certs(&trusted(file)?)),
            None => tls.disable_verification(true),
        };
        let tls = tls.build();
        // Proxies in the environment are ignored: they are outside of this client's namespace.
        let config = Agent::config_builder()
            .tls_config(tls)
            .proxy(None)
            .http_status_as_error(false)
            .timeout_global(Some(LIMIT))
            .build();
        Ok(Self {
            ns: Arc::clone(ns),
            agent: config.into(),
            url: url.to_owned(),
            token: format!("Bearer {token}"),
        })
    }

    /// GET. Returns the body of a successful answer as text.
    ///
    /// # Errors
    /// Fails if there is no answer, or if the answer has another status.
    pub fn text(&self, path: &str) -> Result<String> {
        let (agent, url, token) = self.parts(path);
        self.ns.run(move || read(agent.get(&url).header("Authorization", token).call(), "GET", &url))
    }

    /// GET from the calling thread, which must be in the namespace. Returns any answer, whose body may come without an end.
    ///
    /// # Errors
    /// Fails if there is no answer.
    pub(super) fn open(&self, path: &str, accepts: Option<&str>) -> Result<Response<Body>> {
        let (agent, url, token) = self.parts(path);
        let request = agent.get(&url).header("Authorization", token).config().timeout_global(None).build();
        let request = match accepts {
            Some(accepts) => request.header("Accept-Encoding", accepts),
            None => request,
        };
        request.call().with_context(|| format!("GET {url}"))
    }

    /// GET. Returns the body of a successful answer as JSON.
    ///
    /// # Errors
    /// Fails as [`Api::text`] does.
    pub fn get(&self, path: &str) -> Result<Value> {
        parse(&self.text(path)?)
    }

    /// POST to a collection. Returns the object as the server stored it.
    ///
    /// # Errors
    /// Fails if there is no answer, or if the server refuses. The error includes the server's message.
    pub fn create(&self, path: &str, object: &Value) -> Result<Value> {
        let (this, path, object) = (self.clone(), path.to_owned(), object.clone());
        self.ns.run(move || this.create_here(&path, &object))
    }

    /// Same as [`Api::create`], from the calling thread, which must be in the namespace.
    ///
    /// # Errors
    /// Fails as [`Api::create`] does.
    pub fn create_here(&self, path: &str, object: &Value) -> Result<Value> {
        let (agent, url, token) = self.parts(path);
        let request =
            agent.post(&url).header("Authorization", token).header("Content-Type", "application/json");
        parse(&read(request.send(object.to_string().as_bytes()), "POST", &url)?)
    }

    /// PUT from the calling thread, which must be in the namespace: replaces an object whatever its version is, as far as its kind allows that. `path` names
    /// the object itself.
    ///
    /// # Errors
    /// Fails as [`Api::create`] does, or if there is no such object.
    pub fn replace_here(&self, path: &str, object: &Value) -> Result<()> {
        let (agent, url, token) = self.parts(path);
        let request =
            agent.put(&url).header("Authorization", token).header("Content-Type", "application/json");
        read(request.send(object.to_string().as_bytes()), "PUT", &url).map(drop)
    }

    /// Creates an object, or changes it to this content (server-side apply). `path` names the object itself.
    ///
    /// # Errors
    /// Fails as [`Api::create`] does.
    pub fn apply(&self, path: &str, object: &Value) -> Result<Value> {
        // JSON is YAML too.
        self.apply_yaml(path, &object.to_string())
    }

    /// Same as [`Api::apply`], with the object as YAML.
    ///
    /// # Errors
    /// Fails as [`Api::create`] does.
    pub fn apply_yaml(&self, path: &str, object: &str) -> Result<Value> {
        let (agent, url, token) = self.parts(&format!("{path}?fieldManager={MANAGER}&force=true"));
        let body = object.to_owned();
        let answer = self.ns.run(move || {
            let request = agent.patch(&url).header("Authorization", token);
            let request = request.header("Content-Type", "application/apply-patch+yaml");
            read(request.send(body.as_bytes()), "PATCH", &url)
        });
        parse(&answer?)
    }

    /// Sets an annotation of an object. `path` names the object itself. All watches of the object's kind bring the object anew if the value is another one.
    ///
    /// # Errors
    /// Fails as [`Api::create`] does, or if there is no such object.
    pub fn annotate(&self, path: &str, name: &str, value: &str) -> Result<()> {
        self.merge(path, &json!({"metadata": {"annotations": {(name): value}}}))
    }

    /// Changes these fields of an object. `path` names the object itself.
    ///
    /// # Errors
    /// Fails as [`Api::create`] does, or if there is no such object.
    pub fn merge(&self, path: &str, fields: &Value) -> Result<()> {
        let (agent, url, token) = self.parts(path);
        let body = fields.to_string();
        let answer = self.ns.run(move || {
            let request = agent.patch(&url).header("Authorization", token);
            let request = request.header("Content-Type", "application/merge-patch+json");
            read(request.send(body.as_bytes()), "PATCH", &url)
        });
        answer.map(drop)
    }

    /// DELETE of an object, or of all objects of a collection.
    ///
    /// # Errors
    /// Fails as [`Api::create`] does, or if there is no such object.
    pub fn delete(&self, path: &str) -> Result<()> {
        let (agent, url, token) = self.parts(path);
        let answer = self
            .ns
            .run(move || read(agent.delete(&url).header("Authorization", token).call(), "DELETE", &url));
        answer.map(drop)
    }

    /// Sends a request, which may be refused. Returns the status of the answer.
    ///
    /// # Errors
    /// Fails if there is no answer.
    pub fn status(&self, method: &str, path: &str, object: Option<(&str, &Value)>) -> Result<u16> {
        let (agent, url, token) = self.parts(path);
        let request = Request::builder().method(method).uri(&url).header("Authorization", token);
        let told = format!("{method} {url}");
        let answer = match object {
            Some((content, object)) => {
                let request =
                    request.header("Content-Type", content).body(object.to_string().into_bytes())?;
                self.ns.run(move || agent.run(request).map(|answer| answer.status().as_u16()))
            }
            None => {
                let request = request.body(())?;
                self.ns.run(move || agent.run(request).map(|answer| answer.status().as_u16()))
            }
        };
        answer.context(told)
    }

    fn parts(&self, path: &str) -> (Agent, String, String) {
        (self.agent.clone(), format!("{}{path}", self.url), self.token.clone())
    }
}

fn trusted(certificates: &Path) -> Result<Vec<Certificate<'static>>> {
    let pem = std::fs::read(certificates).with_context(|| certificates.display().to_string())?;
    let trusted = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate.to_owned()),
            _ => None,
        })
        .collect::<Vec<Certificate<'static>>>();
    if trusted.is_empty() {
        bail!("no certificate in {}", certificates.display());
    }
    Ok(trusted)
}

/// Returns the body of a successful answer. The error for any other answer has its status and its body.
fn read(answer: Result<Response<Body>, ureq::Error>, verb: &str, url: &str) -> Result<String> {
    let mut answer = answer.with_context(|| format!("{verb} {url}"))?;
    let text = answer.body_mut().read_to_string().with_context(|| format!("{verb} {url}: the answer"))?;
    if !answer.status().is_success() {
        bail!("{verb} {url}: {}: {text}", answer.status());
    }
    Ok(text)
}

fn parse(text: &str) -> Result<Value> {
    serde_json::from_str(text).context("the API server's answer is no JSON")
}
