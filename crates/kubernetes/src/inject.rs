//! What the webhook changes in a pod that asks for a GPU.
//!
//! ```text
//!  pod ── scheduling gate: not scheduled before its lease is granted
//!      ── first init container `sluice` (a sidecar): claims the lease and holds it
//!      ── volumes: the lease's key (a Secret, for the sidecar only), the libraries, the session
//!      ── every other container: both volumes read-only, and the environment
//! ```
//! The Secret does not exist yet; the controller makes it when the lease is granted. No token
//! stands in the pod.

use serde_json::{Map, Value, json};
use sluice_api::lease::NewLease;

use crate::ask::{Alias, GPU, annotations, is_gpu_resource};

/// The gate that the controller lifts when the lease is granted.
pub(crate) const GATE: &str = "sluice.dev/lease";
/// The label of pods that have a lease or wait for one.
pub(crate) const LABEL: &str = "sluice.dev/injected";
/// The annotation that names the Secret with the lease's key.
pub(crate) const SECRET: &str = "sluice.dev/secret";

/// The name of the sidecar and of the volume with the libraries.
const SIDECAR: &str = "sluice";
const SESSION_VOLUME: &str = "sluice-session";
const LEASE_VOLUME: &str = "sluice-lease";
/// The places of the volumes in the containers.
pub(crate) const LIBRARIES: &str = "/opt/sluice";
pub(crate) const SESSION: &str = "/run/sluice";
const SESSION_FILE: &str = "/run/sluice/session";
const LEASE: &str = "/run/sluice-lease";

/// The user of Sluice's image.
const USER: u32 = 65532;

/// What the cluster's administrator has chosen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// The image of the sidecar.
    pub(crate) image: String,
    pub(crate) pull_policy: Option<String>,
    pub(crate) aliases: Vec<Alias>,
    /// Whether the pool has software GPUs, which run PTX only.
    pub(crate) ptx: bool,
    /// Whether machines have `sluice.dev/gpu` as a resource: the sidecar asks for as many as the
    /// lease has GPUs.
    pub(crate) device_plugin: bool,
}

/// Whether the pod has been changed already.
pub(crate) fn is_injected(pod: &Value) -> bool {
    pod["metadata"]["labels"][LABEL] == "true"
}

/// Returns the pod as it is to be, with the lease that it asks for; `secret` is the name of the
/// Secret that it will have.
pub(crate) fn injected(pod: &Value, ask: &NewLease, settings: &Settings, secret: &str) -> Value {
    let mut pod = pod.clone();
    object(&mut pod["metadata"]["labels"]).insert(LABEL.into(), "true".into());
    let annotated = object(&mut pod["metadata"]["annotations"]);
    annotated.insert(SECRET.into(), secret.into());
    for (name, text) in annotations(ask) {
        annotated.entry(name).or_insert(text.into());
    }
    let spec = &mut pod["spec"];
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            take_out_gpus(container, &settings.aliases);
            equip(container, settings.ptx);
        }
    }
    array(&mut spec["schedulingGates"]).push(json!({ "name": GATE }));
    array(&mut spec["initContainers"]).insert(0, sidecar(settings, ask.gpus));
    array(&mut spec["volumes"]).extend([
        json!({ "name": SIDECAR, "emptyDir": { "sizeLimit": "128Mi" } }),
        json!({ "name": SESSION_VOLUME, "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }),
        json!({ "name": LEASE_VOLUME, "secret": { "secretName": secret } }),
    ]);
    pod
}

fn sidecar(settings: &Settings, gpus: u32) -> Value {
    let mut sidecar = json!({
        "name": SIDECAR,
        "image": settings.image,
        // A sidecar: it starts before the other containers and ends after them.
        "restartPolicy": "Always",
        "command": ["/usr/bin/sluice", "hold", "--from", LEASE, "--session-file", SESSION_FILE, "--install", LIBRARIES],
        "startupProbe": {
            "exec": { "command": ["/usr/bin/sluice", "hold", "--is-ready", "--session-file", SESSION_FILE] },
            "periodSeconds": 1,
            "failureThreshold": 300,
        },
        "resources": { "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": "256Mi" } },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "volumeMounts": [
            { "name": SIDECAR, "mountPath": LIBRARIES },
            { "name": SESSION_VOLUME, "mountPath": SESSION },
            { "name": LEASE_VOLUME, "mountPath": LEASE, "readOnly": true },
        ],
    });
    if let Some(policy) = &settings.pull_policy {
        sidecar["imagePullPolicy"] = policy.as_str().into();
    }
    if settings.device_plugin {
        sidecar["resources"]["limits"][GPU] = gpus.to_string().into();
    }
    sidecar
}

/// Removes the resources that no machine has, or that the sidecar asks for instead: with them the
/// pod could not be scheduled, or would count twice.
fn take_out_gpus(container: &mut Value, aliases: &[Alias]) {
    for list in ["/resources/limits", "/resources/requests"] {
        if let Some(resources) = container.pointer_mut(list).and_then(Value::as_object_mut) {
            resources.retain(|name, _| !is_gpu_resource(name, aliases));
        }
    }
}

/// The variables that lead a program to the libraries and the session, in a container whose own
/// variables are not known. Some replace those of its image.
pub(crate) fn environment(ptx: bool) -> Vec<(String, String)> {
    let mut container = json!({});
    equip(&mut container, ptx);
    let variables = container["env"].as_array().into_iter().flatten();
    let text = |variable: &Value| {
        Some((variable["name"].as_str()?.to_owned(), variable["value"].as_str()?.to_owned()))
    };
    variables.filter_map(text).collect()
}

/// Mounts libraries and session, and sets what leads the program to them.
fn equip(container: &mut Value, ptx: bool) {
    array(&mut container["volumeMounts"]).extend([
        json!({ "name": SIDECAR, "mountPath": LIBRARIES, "readOnly": true }),
        json!({ "name": SESSION_VOLUME, "mountPath": SESSION, "readOnly": true }),
    ]);
    let libraries = format!("{LIBRARIES}/lib");
    let environment = array(&mut container["env"]);
    if ptx {
        join(environment, "LD_LIBRARY_PATH", &format!("{LIBRARIES}/software"), true);
    }
    join(environment, "LD_LIBRARY_PATH", &libraries, true);
    // Where the loader is not glibc's, the path has no file: see `Libraries::install`.
    join(environment, "LD_PRELOAD", &format!("{LIBRARIES}/preload/$LIB/libsluice-devfiles.so"), false);
    let mut set = |name: &str, value: Value| {
        if !environment.iter().any(|variable| variable["name"] == name) {
            let mut variable = Map::from_iter([("name".to_owned(), Value::from(name))]);
            variable.extend(value.as_object().cloned().unwrap_or_default());
            environment.push(Value::Object(variable));
        }
    };
    set("SLUICE_SESSION", json!({ "value": format!("@{SESSION_FILE}") }));
    set("SLUICE_LIBRARIES", json!({ "value": libraries }));
    // Each pod is a host of its own to NCCL: nothing is shared with other pods of the node.
    set("NCCL_HOSTID", json!({ "valueFrom": { "fieldRef": { "fieldPath": "metadata.uid" } } }));
    set("NCCL_SHM_DISABLE", json!({ "value": "1" }));
    if ptx {
        set("CUPY_COMPILE_WITH_PTX", json!({ "value": "1" }));
        set("SLUICE_SOFTWARE_LIBRARIES", json!({ "value": format!("{LIBRARIES}/software") }));
        set("LD_AUDIT", json!({ "value": format!("{LIBRARIES}/libsluice-nojitlink.so") }));
    }
}

/// Adds a path to a variable that is a list of paths. One whose value comes from elsewhere stays.
fn join(environment: &mut Vec<Value>, name: &str, path: &str, first: bool) {
    let Some(variable) = environment.iter_mut().find(|variable| variable["name"] == name) else {
        return environment.push(json!({ "name": name, "value": path }));
    };
    if let Some(value) = variable["value"].as_str() {
        let joined = match (value.is_empty(), first) {
            (true, _) => path.to_owned(),
            (false, true) => format!("{path}:{value}"),
            (false, false) => format!("{value}:{path}"),
        };
        variable["value"] = joined.into();
    }
}

fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made an object above")
}

fn array(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut().expect("made an array above")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::ask_of;

    fn pod() -> Value {
        json!({
            "metadata": { "name": "train", "annotations": { "sluice.dev/share": "0.25" } },
            "spec": {
                "initContainers": [{ "name": "fetch", "image": "fetch" }],
                "containers": [{
                    "name": "train",
                    "image": "train",
                    "env": [
                        { "name": "LD_LIBRARY_PATH", "value": "/own" },
                        { "name": "NCCL_SHM_DISABLE", "value": "0" },
                    ],
                    "resources": { "limits": { "cpu": "1", "sluice.dev/gpu": 1, "nvidia.com/gpu": 1 } },
                }],
            },
        })
    }

    fn settings() -> Settings {
        Settings { image: "sluice:1".into(), ..Settings::default() }
    }

    fn change(settings: &Settings) -> Value {
        let ask = ask_of(&pod(), &settings.aliases).unwrap().unwrap();
        injected(&pod(), &ask, settings, "s")
    }

    fn variable<'a>(container: &'a Value, name: &str) -> &'a Value {
        let environment = container["env"].as_array().unwrap();
        &environment.iter().find(|variable| variable["name"] == name).unwrap()["value"]
    }

    #[test]
    fn the_sidecar_comes_first_and_alone_sees_the_key() {
        let pod = change(&settings());
        assert!(is_injected(&pod));
        let containers = pod["spec"]["initContainers"].as_array().unwrap();
        assert_eq!([&containers[0]["name"], &containers[1]["name"]], ["sluice", "fetch"]);
        assert_eq!(containers[0]["restartPolicy"], "Always");
        let others = containers[1..].iter().chain(pod["spec"]["containers"].as_array().unwrap());
        for container in others {
            let mounts = container["volumeMounts"].as_array().unwrap();
            assert!(mounts.iter().all(|mount| mount["readOnly"] == true && mount["name"] != LEASE_VOLUME));
        }
        assert_eq!(pod["spec"]["schedulingGates"], json!([{ "name": GATE }]));
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let pod = change(&settings());
        let train = &pod["spec"]["containers"][0];
        assert_eq!(variable(train, "LD_LIBRARY_PATH"), "/opt/sluice/lib:/own");
        assert_eq!(variable(train, "NCCL_SHM_DISABLE"), "0");
        assert_eq!(variable(train, "SLUICE_SESSION"), "@/run/sluice/session");
        // A resource of another product stays unless its alias was chosen.
        assert_eq!(train["resources"]["limits"], json!({ "cpu": "1", "nvidia.com/gpu": 1 }));
        let aliases = vec![Alias::Nvidia];
        let pod = change(&Settings { aliases, ..settings() });
        assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"], json!({ "cpu": "1" }));
    }

    #[test]
    fn the_sidecar_alone_takes_slots_where_machines_have_them() {
        let settings = Settings { device_plugin: true, ..settings() };
        let pod = change(&settings);
        let sidecar = &pod["spec"]["initContainers"][0];
        assert_eq!(sidecar["resources"]["limits"][GPU], "1");
        assert!(pod["spec"]["containers"][0]["resources"]["limits"].get(GPU).is_none());
        assert_eq!(ask_of(&pod, &[]), ask_of(&self::pod(), &[]));
    }

    #[test]
    fn nothing_is_added_that_is_not_needed() {
        let pod = json!({ "metadata": {}, "spec": { "containers": [{ "name": "a" }] } });
        let changed = injected(&pod, &NewLease::whole(1), &settings(), "s");
        assert!(changed["spec"]["containers"][0].get("resources").is_none());
        assert!(!changed["spec"].to_string().contains("null"), "{changed}");
    }

    #[test]
    fn a_changed_pod_asks_for_the_same() {
        let aliases = vec![Alias::Hami];
        let limits = json!({ "nvidia.com/gpu": 2, "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": 33 });
        let pod =
            json!({ "metadata": {}, "spec": { "containers": [{ "resources": { "limits": limits } }] } });
        let ask = ask_of(&pod, &aliases).unwrap().unwrap();
        let changed = injected(&pod, &ask, &Settings { aliases: aliases.clone(), ..settings() }, "s");
        assert_eq!(ask_of(&changed, &aliases), Ok(Some(ask.clone())));
        // The controller may be started with other aliases later.
        assert_eq!(ask_of(&changed, &[]), Ok(Some(ask)));
    }
}
