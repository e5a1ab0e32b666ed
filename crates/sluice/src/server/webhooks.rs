//! `sluice webhook`: where events are sent, and what became of them.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use sluice_api::Page;
use sluice_api::client::{Client, segment};
use sluice_api::token::Token;
use sluice_api::webhook::{Delivery, DeliveryState, MadeWebhook, NewWebhook, Webhook, WebhookFormat};

use super::client;
use super::lists::show;
use crate::cli::{AtServer, Output, WebhookCommand};
use crate::moment::Moment;
use crate::table::Align::{Left, Right};

/// `sluice webhook test` waits this long: longer than the server waits for an answer.
const TEST_TIME_MAX: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(crate) fn webhook(command: &WebhookCommand) -> Result<ExitCode> {
    match command {
        WebhookCommand::Add { at, url, tenant, events, format, name } => {
            let client = client(at)?;
            let tenant = match tenant {
                Some(tenant) => tenant.clone(),
                None => client.get::<Token>("/whoami")?.tenant,
            };
            let (url, events, name) = (url.clone(), events.clone(), name.clone());
            let new = NewWebhook { tenant, url, format: *format, events, name };
            let made: MadeWebhook = client.post("/webhooks", &new)?;
            let id = &made.webhook.id;
            if made.webhook.format == WebhookFormat::Mail {
                eprintln!("sluice: webhook {id}");
            } else {
                println!("{}", made.secret);
                eprintln!("sluice: webhook {id}; receivers check signatures with the secret above");
            }
            eprintln!("sluice: `sluice webhook test {id}` sends a test");
        }
        WebhookCommand::List(list) => {
            let webhooks: Vec<Webhook> = client(&list.at)?.list("/webhooks")?;
            let columns = &[
                ("ID", Left),
                ("TENANT", Left),
                ("NAME", Left),
                ("FORMAT", Left),
                ("STATE", Left),
                ("URL", Left),
            ];
            show(&webhooks, list.output, "there are no webhooks", columns, webhook_cells)?;
        }
        WebhookCommand::Remove { at, id } => {
            let _: Webhook = client(at)?.delete(&path(id, ""))?;
            eprintln!("sluice: webhook {id} is removed");
        }
        WebhookCommand::Enable { at, id } => {
            let _: Webhook = client(at)?.post(&path(id, "/enable"), &serde_json::json!({}))?;
            eprintln!("sluice: webhook {id} is enabled");
        }
        WebhookCommand::Test { at, id } => return test(at, id),
        WebhookCommand::Deliveries { at, id, output } => {
            let deliveries: Vec<Delivery> = client(at)?.list(&path(id, "/deliveries"))?;
            deliveries_table(&deliveries, *output)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn path(id: &str, rest: &str) -> String {
    format!("/webhooks/{}{rest}", segment(id))
}

/// Asks for a test and waits for its first attempt.
fn test(at: &AtServer, id: &str) -> Result<ExitCode> {
    let client = client(at)?;
    let asked: Delivery = client.post(&path(id, "/tests"), &serde_json::json!({}))?;
    let deadline = Instant::now() + TEST_TIME_MAX;
    while Instant::now() < deadline {
        let delivery = find(&client, id, &asked.id)?;
        match delivery.filter(|delivery| delivery.attempts > 0) {
            Some(Delivery { state: DeliveryState::Delivered, status, .. }) => {
                eprintln!("sluice: delivered; the receiver answered with status {}", status.unwrap_or(0));
                return Ok(ExitCode::SUCCESS);
            }
            Some(Delivery { error, .. }) => {
                bail!("not delivered: {}. The server tries again", error.unwrap_or_default())
            }
            None => sleep(LOOK_EVERY),
        }
    }
    bail!(
        "the test was not sent within {} s; `sluice webhook deliveries {id}` says more",
        TEST_TIME_MAX.as_secs()
    )
}

/// Finds a delivery among the latest.
fn find(client: &Client, id: &str, event: &str) -> Result<Option<Delivery>> {
    let page: Page<Delivery> = client.get(&path(id, "/deliveries?limit=100"))?;
    Ok(page.items.into_iter().find(|delivery| delivery.id == event))
}

fn webhook_cells(webhook: &Webhook) -> Vec<String> {
    let state = match (&webhook.disabled, webhook.failing_since_ms) {
        (Some(why), _) => format!("disabled: {why}"),
        (None, Some(since_ms)) => format!("failing since {}", Moment::from_ms(since_ms)),
        (None, None) => "enabled".to_owned(),
    };
    let discarded = match webhook.discarded {
        0 => String::new(),
        count => format!("; {count} events were discarded"),
    };
    vec![
        webhook.id.clone(),
        webhook.tenant.to_string(),
        webhook.name.clone(),
        webhook.format.name().to_owned(),
        state + &discarded,
        webhook.url.clone(),
    ]
}

fn deliveries_table(deliveries: &[Delivery], output: Output) -> Result<()> {
    let columns = &[
        ("EVENT", Left),
        ("MADE", Left),
        ("STATE", Left),
        ("ATTEMPTS", Right),
        ("STATUS", Right),
        ("NEXT", Left),
        ("ERROR", Left),
        ("ID", Left),
    ];
    let cells = |delivery: &Delivery| {
        vec![
            delivery.event.name().to_owned(),
            Moment::from_ms(delivery.created_at_ms).to_string(),
            delivery.state.name().to_owned(),
            delivery.attempts.to_string(),
            delivery.status.map_or_else(|| "-".to_owned(), |status| status.to_string()),
            delivery.next_at_ms.map_or_else(|| "-".to_owned(), |at_ms| Moment::from_ms(at_ms).to_string()),
            delivery.error.clone().unwrap_or_default(),
            delivery.id.clone(),
        ]
    };
    show(deliveries, output, "nothing has been sent yet", columns, cells)
}
