use proptest::prelude::*;

use super::jobs::jobs_of;
use super::nodes::nodes_of;
use super::queues::queues_of;
use super::table::Table;
use super::{jobs_from_text as jobs, nodes_from_text as nodes, queues_from_text as queues};

#[test]
fn our_own_format() {
    let nodes = nodes(
        "name,cpus,memory_gib,gpus,model,gpu_memory_gib,rack\n a , 64,256,8,A100,80,r1\nb,7.5,32.1,0,,,\n",
    )
    .unwrap();
    assert_eq!((nodes[0].name.as_str(), nodes[0].cpu_milli, nodes[0].memory_mib), ("a", 64_000, 262_144));
    assert_eq!((nodes[0].gpus, nodes[0].gpu_memory_mib, nodes[0].rack.as_str()), (8, 81_920, "r1"));
    assert_eq!((nodes[1].cpu_milli, nodes[1].gpus, nodes[1].line), (7_500, 0, 3));
    let jobs = jobs(
        "name,arrival_s,duration_s,cpus,memory_gib,gpus,share,models,queue,priority,preemptible\n\
         train,0,3600,8,64,2,,A100|H100,research,10,no\nserve,1.5,60,1,4,1,0.25,,prod,,\n",
    )
    .unwrap();
    let [train, serve] = &jobs.jobs[..] else { panic!("{jobs:?}") };
    assert_eq!((train.gpu_milli(), train.priority, train.preemptible), (2000, 10, false));
    assert_eq!(train.models, ["A100", "H100"]);
    assert_eq!((serve.share_milli, serve.timing.unwrap().arrival_ms, serve.preemptible), (250, 1500, true));
}

#[test]
fn the_format_of_openb() {
    let nodes =
        nodes("sn,cpu_milli,memory_mib,gpu,model\nn0,32000,262144,0,\nn1,64000,262144,2,P100\n").unwrap();
    assert_eq!((nodes[1].gpus, nodes[1].model.as_str(), nodes[0].gpus), (2, "P100", 0));
    // multigpu* lists lack the later columns.
    for extra in ["", ",gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"] {
        let values = if extra.is_empty() { "" } else { ",P100|T4,LS,Running,0,12,0" };
        let jobs =
            jobs(&format!("name,cpu_milli,memory_mib,num_gpu,gpu_milli{extra}\np0,1,2,1,460{values}\n"))
                .unwrap();
        assert_eq!(
            (jobs.jobs[0].share_milli, jobs.jobs[0].models.len()),
            (460, if extra.is_empty() { 0 } else { 2 })
        );
        assert!(!jobs.timed());
    }
}

#[test]
fn a_wrong_node_list_says_where() {
    let own = "name,cpus,memory_gib,gpus,model,gpu_memory_gib\n";
    let openb = "sn,cpu_milli,memory_mib,gpu,model\n";
    let check = |text: &str, expect: &str| assert_eq!(nodes(text).unwrap_err().to_string(), expect, "{text}");
    check("", "nodes.csv:1: the column \"name\" is missing");
    check(own, "nodes.csv: lists no node");
    check(
        &format!("{own}a,-4,1,1,A100,80"),
        "nodes.csv:2: cpus: \"-4\" is not a number from 0.001 to 100000",
    );
    check(
        &format!("{own}a,NaN,1,1,A100,80"),
        "nodes.csv:2: cpus: \"NaN\" is not a number from 0.001 to 100000",
    );
    check(
        &format!("{own}a,1,1e300,1,A,"),
        "nodes.csv:2: memory_gib: \"1e300\" is not a number from 0.001 to 1048576",
    );
    check(&format!("{own}a,1,1,900,A,"), "nodes.csv:2: gpus: \"900\" is not a whole number from 0 to 16");
    check(&format!("{own}a,1,1,,A,"), "nodes.csv:2: gpus: is empty; expected a whole number from 0 to 16");
    check(&format!("{own}a,1,1,1,,"), "nodes.csv:2: model: is empty, but the node has GPUs");
    check(&format!("{own}a,1,1,0,A,"), "nodes.csv:2: model: \"A\" on a node without a GPU");
    check(&format!("{own}a,1,1,0,,"), "nodes.csv: no node has a GPU");
    check(
        &format!("{own}a,1,1,1,A,\n\na,1,1,1,A,"),
        "nodes.csv:4: name: \"a\" is the name of line 2 already",
    );
    check(&format!("{own}a,1,1,1\n"), "nodes.csv:2: 4 fields, but the header names 6 columns");
    check(
        "name,cpus,memory_gib,gpu\n",
        "nodes.csv:1: unknown column \"gpu\"; the columns are name, cpus, memory_gib, gpus, model, gpu_memory_gib, memory_overcommit_percent, rack, zone",
    );
    check("name,name\n", "nodes.csv:1: the column \"name\" appears twice");
    check(
        &format!("{openb}n,18446744073709551616,1,1,T4"),
        "nodes.csv:2: cpu_milli: \"18446744073709551616\" is not a whole number from 1 to 100000000",
    );
    let not_text = Table::read("nodes.csv", &b"name,cpus\n\xff\xfe,1\n"[..]).map(|_| ()).unwrap_err();
    assert_eq!(not_text.to_string(), "nodes.csv:2: not UTF-8 text");
}

#[test]
fn a_wrong_job_list_says_where() {
    let own = "name,arrival_s,duration_s,cpus,memory_gib,gpus,share,models,members,preemptible\n";
    let check = |text: &str, expect: &str| assert_eq!(jobs(text).unwrap_err().to_string(), expect, "{text}");
    check(
        &format!("{own}j,-1,1,1,1,1,,,,"),
        "jobs.csv:2: arrival_s: \"-1\" is not a number from 0 to 316224000",
    );
    check(
        &format!("{own}j,0,0,1,1,1,,,,"),
        "jobs.csv:2: duration_s: \"0\" is not a number from 0.001 to 316224000",
    );
    check(&format!("{own}j,0,1,1,1,1,1.5,,,"), "jobs.csv:2: share: \"1.5\" is not a number from 0.001 to 1");
    check(&format!("{own}j,0,1,1,1,0,0.5,,,"), "jobs.csv:2: share: for a job without a GPU");
    check(&format!("{own}j,0,1,1,1,1,,A||B,,"), "jobs.csv:2: models: \"A||B\" names an empty model");
    check(
        &format!("{own}j,0,1,1,1,1,,,0,"),
        "jobs.csv:2: members: \"0\" is not a whole number from 1 to 100000",
    );
    check(&format!("{own}j,0,1,1,1,1,,,,maybe"), "jobs.csv:2: preemptible: \"maybe\" is neither yes nor no");
    check(&format!("{own}j,0,1,1,1,1,,,,\nj,0,1,1,1,1,,,,"), "jobs.csv:3: name: \"j\" appears twice");
    check(&format!("{own}j,0,1,1,1,0,,,,"), "jobs.csv: no job asks for a GPU");
    check(
        "name,cpus,memory_gib,gpus,arrival_s\n",
        "jobs.csv: arrival_s and duration_s come together: one of the columns is missing",
    );
    let openb = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n";
    check(
        &format!("{openb}p,1,1,2,500"),
        "jobs.csv:2: gpu_milli: a request for several GPUs takes whole ones: 1000 each",
    );
    check(&format!("{openb}p,1,1,1,0"), "jobs.csv:2: gpu_milli: \"0\" is not a whole number from 1 to 1000");
}

#[test]
fn a_wrong_queue_list_says_where() {
    let header = "name,parent,deserved_gpus,limit_gpus,weight\n";
    let check =
        |text: &str, expect: &str| assert_eq!(queues(text).unwrap_err().to_string(), expect, "{text}");
    check(
        &format!("{header}x,a,,,\na,b,,,\nb,a,,,"),
        "queues.csv:3: parent: \"a\" is part of \"b\" is part of \"a\" is a cycle; one of them must stand below the cluster",
    );
    check(
        &format!("{header}a,x,,,"),
        "queues.csv:2: parent: there is no queue \"x\"; name one of the queues, or leave it out",
    );
    check(&format!("{header}a,,,,\na,,,,"), "queues.csv:3: name: two queues have this name; rename one");
    check(
        &format!("{header}a,,4,,\nb,a,8,,"),
        "queues.csv:2: deserved_gpus: its children together deserve 8 GPUs, but it deserves 4 GPUs; raise it or lower theirs",
    );
    check(&format!("{header}a,,8,4,"), "queues.csv:2: limit_gpus: is less than deserved_gpus");
    check(
        &format!("{header}a,,8,,-1"),
        "queues.csv:2: weight: \"-1\" is not a whole number from 0 to 1000000",
    );
}

/// Cells that readers meet in damaged files, among good ones.
fn cell() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "",
            "0",
            "1",
            "-1",
            "8",
            "0.5",
            "1e309",
            "NaN",
            "inf",
            "99999999999999999999",
            "A100",
            "A|B",
            "|",
            "\"",
            "yes",
            "a",
            "\u{0}",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,8}",
    ]
}

proptest! {
    /// Whatever the file holds, the readers answer, and what they accept is within its limits.
    #[test]
    fn readers_never_panic(
        header in prop::sample::subsequence(
            vec!["name", "sn", "cpus", "memory_gib", "gpus", "model", "cpu_milli", "memory_mib", "gpu", "num_gpu", "gpu_milli", "parent", "weight", "share", "models", "arrival_s", "duration_s"],
            0..=12,
        ),
        cells in prop::collection::vec(prop::collection::vec(cell(), 0..=12), 0..6),
    ) {
        let mut text = header.join(",");
        for row in &cells {
            text.push('\n');
            text.push_str(&row.join(","));
        }
        let _ = nodes(&text);
        let _ = jobs(&text);
        let _ = queues(&text);
    }

    #[test]
    fn rows_of_our_format_never_panic(cells in prop::collection::vec(cell(), 10)) {
        let row = cells.join(",");
        let _ = nodes(&format!("name,cpus,memory_gib,gpus,model,gpu_memory_gib,rack,zone\n{}", cells[..8].join(",")));
        if let Ok(jobs) = jobs(&format!("name,arrival_s,duration_s,cpus,memory_gib,gpus,share,models,queue,preemptible\n{row}")) {
            prop_assert!(jobs.jobs.iter().all(|job| job.share_milli <= 1000 && job.timing.is_some()));
        }
    }

    #[test]
    fn bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(table) = Table::read("x.csv", &bytes[..]) {
            let _ = nodes_of(&table);
            let _ = jobs_of(&table, "x.csv".into());
            let _ = queues_of(&table);
        }
    }
}

#[test]
fn jobs_wait_in_queues_that_exist_and_have_none_below_them() {
    let queues = queues("name,parent\norg,\nteam,org\n").unwrap();
    let check = |queue: &str, expect: &str| {
        let jobs = jobs(&format!("name,cpus,memory_gib,gpus,queue\nj,1,1,1,{queue}\n")).unwrap();
        let message = queues.check(&jobs).err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(message, expect, "{queue}");
    };
    check("team", "");
    check("org", "jobs.csv:2: queue: \"org\" has queues below it; jobs wait in the lowest queues");
    check("other", "jobs.csv:2: queue: there is no queue \"other\"");
    check("", "jobs.csv:2: queue: is empty, and there is no queue \"all\" for such jobs");
}
