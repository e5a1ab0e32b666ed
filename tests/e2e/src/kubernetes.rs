//! Kubernetes: pods and their leases, and what the Helm chart renders, refuses and allows.

mod access;
mod api_server;
mod claims;
mod cluster;
mod gone;
mod images;
mod kills;
mod kubectl;
mod machine;
mod pods;
mod programs;
mod real;
mod slots;
mod speed;
mod tools;
mod volumes;
mod whole;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Test;
use crate::process;
use crate::python::KUBERNETES;

pub(crate) use speed::tables;

pub(crate) const TESTS: &[Test] =
    &[("kubernetes: pods get leases, wait and end", pods::pods_get_leases_wait_and_end)];

pub(crate) const LONG_TESTS: &[Test] = &[
    ("kubernetes: kubectl lists pods and says why they wait", kubectl::pods_are_listed_and_explained),
    ("kubernetes: the chart renders what Kubernetes accepts", the_chart_renders),
    ("kubernetes: server and nodes are scraped with a token", metrics_are_scraped),
    ("kubernetes: the chart refuses wrong values", wrong_values_are_refused),
    ("kubernetes: pods are restricted, and rights are few", pods_are_restricted),
    ("kubernetes: pods that ask for a GPU are known from others", pods_that_ask_are_known),
    ("kubernetes: a real API server takes the chart, and pods get leases", real::the_chart_and_pods_work),
    ("kubernetes: the server starts in its volume", volumes::the_server_starts_in_its_volume),
    ("kubernetes: a whole cluster runs pods on another machine's GPU", whole::pods_compute_elsewhere),
    ("kubernetes: every part of a whole cluster may be killed", kills::every_part_may_be_killed),
];

/// Versions whose schemas the manifests are checked against.
const VERSIONS: [&str; 5] = ["1.33", "1.34", "1.35", "1.36", "1.37"];

/// Ways to install the chart that need dynamic resource allocation, and the first version that has
/// it.
const WITH_CLAIMS: [&[&str]; 2] = [
    &["dra.enabled=true"],
    &[
        "dra.enabled=true",
        "dra.nodeSelector.sluice=yes",
        "controller.ptx=true",
        "controller.tenants.red=acme/red",
    ],
];
const CLAIMS_SINCE: &str = "1.34";

/// Ways to install the chart.
const VARIANTS: [&[&str]; 5] = [
    &[],
    &[
        "metrics.enabled=true",
        "metrics.dashboards.enabled=true",
        "node.overcommit=2.5",
        "node.swapMemory=64GiB",
        "node.swapFile=1.5t",
    ],
    &["server.enabled=false", "server.url=https://sluice.example:7580", "node.enabled=false"],
    &["controller.aliases={nvidia,hami,kai}", "controller.ptx=true", "controller.tenants.red=acme/red"],
    &[
        "server.listenHost=[::]",
        "devicePlugin.enabled=true",
        "node.runtimeClassName=nvidia",
        "node.nodeSelector.gpu=yes",
        "image.pullSecrets={key}",
    ],
];

fn chart() -> PathBuf {
    crate::root().join("deploy/helm/sluice")
}

fn helm(command: &str, values: &[&str]) -> Result<Command> {
    let mut helm = Command::new(tools::helm()?);
    helm.arg(command);
    if command == "template" {
        helm.args(["sluice", "--namespace", "sluice-system"]);
    }
    helm.arg(chart());
    values.iter().for_each(|value| _ = helm.args(["--set", value]));
    Ok(helm)
}

fn the_chart_renders() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let validate = KUBERNETES.program("kubernetes-validate")?;
    let variants = VARIANTS.iter().map(|values| (values, VERSIONS[0]));
    let variants = variants.chain(WITH_CLAIMS.iter().map(|values| (values, CLAIMS_SINCE)));
    for (number, (values, since)) in variants.enumerate() {
        process::output_of(&mut helm("lint", values)?)?;
        let file = folder.path().join(format!("{number}.yaml"));
        std::fs::write(&file, process::output_of(&mut helm("template", values)?)?)?;
        for version in VERSIONS.into_iter().filter(|version| *version >= since) {
            let mut check = Command::new(&validate);
            process::output_of(check.args(["--strict", "-k", version]).arg(&file))?;
        }
    }
    Ok(())
}

/// Server and nodes serve metrics to the holder of a token, and what the Prometheus Operator and
/// Grafana are to take is what `deploy` has.
fn metrics_are_scraped() -> Result<()> {
    let all = [
        "metrics.enabled",
        "metrics.monitors.enabled",
        "metrics.rules.enabled",
        "metrics.dashboards.enabled",
    ];
    let objects = rendered(&all.map(|value| format!("{value}=true")).each_ref().map(String::as_str))?;
    let of_kind = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
    let one = |kind: &str| of_kind(kind).into_iter().next().with_context(|| format!("no {kind}"));
    for (workload, port) in [("StatefulSet", 9580), ("DaemonSet", 9583)] {
        let container = &one(workload)?["spec"]["template"]["spec"]["containers"][0];
        let arguments = container["args"].to_string();
        ensure!(
            arguments.contains("--metrics=")
                && arguments.contains("--metrics-token-file=/etc/sluice/metrics/token"),
            "{workload}: {arguments}"
        );
        let ports = container["ports"].as_array().context("ports")?;
        ensure!(ports.iter().any(|p| p["name"] == "metrics" && p["containerPort"] == port), "{ports:?}");
        let is_open = |policy: &&Value| policy["spec"]["ingress"].to_string().contains(&port.to_string());
        ensure!(of_kind("NetworkPolicy").iter().any(is_open), "no policy lets scrapers reach port {port}");
    }
    for (monitor, target, endpoints, labels) in [
        ("ServiceMonitor", "Service", "endpoints", "/metadata/labels"),
        ("PodMonitor", "DaemonSet", "podMetricsEndpoints", "/spec/template/metadata/labels"),
    ] {
        let spec = &one(monitor)?["spec"];
        let wanted = spec["selector"]["matchLabels"].as_object().context("labels")?;
        let is_selected = |object: &&Value| {
            let has = object.pointer(labels);
            wanted.iter().all(|(name, value)| has.is_some_and(|has| has[name] == *value))
        };
        ensure!(
            of_kind(target).iter().filter(|object| is_selected(object)).count() == 1,
            "{monitor}: {spec}"
        );
        ensure!(spec[endpoints][0]["authorization"]["credentials"]["key"] == "token", "{monitor}: {spec}");
    }
    let rules = std::fs::read_to_string(crate::root().join("deploy/prometheus/sluice.rules.yaml"))?;
    let alerts = rules.lines().filter(|line| line.trim().starts_with("- alert: ")).count();
    let rendered_alerts = one("PrometheusRule")?["spec"].to_string().matches("\"alert\":").count();
    ensure!(alerts > 10 && rendered_alerts == alerts, "{rendered_alerts} of {alerts} alerts");
    ensure!(of_kind("ConfigMap").len() == 6, "dashboards");
    ensure!(rendered(&[])?.iter().all(|object| !object.to_string().contains("metrics")), "metrics unasked");
    Ok(())
}

fn wrong_values_are_refused() -> Result<()> {
    for (value, named) in [
        ("controller.holdSeconds=0", "holdSeconds"),
        ("controller.aliases={unknown}", "aliases"),
        ("devicePlugin.slots=0", "slots"),
        ("server.enabled=false", "url"),
        ("nodes.enabled=true", "nodes"),
        ("dra.nodeSelector=yes", "nodeSelector"),
        ("metrics.monitors.interval=fast", "interval"),
        ("node.overcommit=0.5", "overcommit"),
        ("node.overcommit=16.5", "overcommit"),
        ("node.overcommit=17", "overcommit"),
        ("node.swapMemory=0GiB", "swapMemory"),
        ("node.swapMemory=64", "swapMemory"),
        ("node.swapMemory=64Gi", "swapMemory"),
        ("node.swapFile=a disk", "swapFile"),
    ] {
        let output = helm("template", &[value])?.output()?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && message.contains(named), "{value}: {message}");
    }
    Ok(())
}

fn pods_are_restricted() -> Result<()> {
    let objects = rendered(&["dra.enabled=true"])?;
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    for object in of_kind("Deployment").chain(of_kind("StatefulSet")) {
        restricted(&object["spec"]["template"]["spec"])
            .with_context(|| object["metadata"]["name"].to_string())?;
    }
    ensure!(of_kind("ClusterRole").count() == 3, "a role is not looked at");
    for rule in of_kind("ClusterRole").flat_map(|role| role["rules"].as_array()).flatten() {
        ensure!(!rule.to_string().contains('*'), "{rule}");
        let is_about =
            |resource: &str| rule["resources"].as_array().is_some_and(|all| all.contains(&resource.into()));
        ensure!(!is_about("secrets") || rule["verbs"] == serde_json::json!(["create"]), "{rule}");
    }
    let webhook = of_kind("MutatingWebhookConfiguration").next().context("a webhook")?;
    let webhook = &webhook["webhooks"][0];
    ensure!(webhook["failurePolicy"] == "Ignore" && webhook["matchConditions"].is_array(), "{webhook}");
    let policy = of_kind("ValidatingAdmissionPolicy").next().context("a policy")?;
    ensure!(policy["spec"]["matchConditions"] == webhook["matchConditions"], "{policy}");
    let namespaces = &policy["spec"]["matchConstraints"]["namespaceSelector"];
    ensure!(*namespaces == webhook["namespaceSelector"], "{policy}");
    Ok(())
}

/// The expressions that the API server evaluates.
fn pods_that_ask_are_known() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("chart.json");
    std::fs::write(&file, Value::from(rendered(&["controller.aliases={nvidia,hami,kai}"])?).to_string())?;
    let mut check = Command::new(KUBERNETES.ready()?);
    process::output_of(check.arg(crate::root().join("tests/kubernetes/policy.py")).arg(&file)).map(drop)
}

/// Fails unless a pod meets the Pod Security Standard "restricted".
fn restricted(pod: &Value) -> Result<()> {
    let security = &pod["securityContext"];
    ensure!(
        security["runAsNonRoot"] == true && security["seccompProfile"]["type"] == "RuntimeDefault",
        "{security}"
    );
    for container in pod["containers"].as_array().context("containers")? {
        let security = &container["securityContext"];
        ensure!(security["allowPrivilegeEscalation"] == false, "{security}");
        ensure!(security["capabilities"]["drop"][0] == "ALL", "{security}");
        ensure!(security["readOnlyRootFilesystem"] == true, "{security}");
    }
    let volumes = pod["volumes"].as_array().into_iter().flatten();
    for volume in volumes {
        ensure!(volume["hostPath"].is_null(), "{volume}");
    }
    Ok(())
}

/// The objects of the chart.
fn rendered(values: &[&str]) -> Result<Vec<Value>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("chart.yaml");
    std::fs::write(&file, process::output_of(&mut helm("template", values)?)?)?;
    let mut convert = Command::new(KUBERNETES.ready()?);
    let program = "import json, sys, yaml; json.dump([d for d in yaml.safe_load_all(open(sys.argv[1])) if d], sys.stdout)";
    Ok(serde_json::from_str(&process::output_of(convert.args(["-c", program]).arg(&file))?)?)
}
