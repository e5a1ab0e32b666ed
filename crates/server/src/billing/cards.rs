//! What each GPU earned. A record is of all GPUs that its lease had on the node, which share it
//! evenly. Where a lease was moved away it may not be known of which it is; then it is on bills and
//! of no GPU.

use std::collections::BTreeMap;

use sluice_api::GPU_PPM;
use sluice_api::bill::{CardEarnings, Goods, Line, Meter, PricePer, Rate};
use sluice_api::node::NodeId;
use sluice_api::tenant::TenantPath;

use super::{Ledger, Period, Rates};
use crate::store::{CardSum, Store, StoreError};

/// A node, and the GPUs that it has now.
#[derive(Clone, Debug)]
pub(crate) struct CardsOfNode {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) first_joined_ms: u64,
    pub(crate) cards: Vec<CardNow>,
}

/// A GPU that is there.
#[derive(Clone, Debug)]
pub(crate) struct CardNow {
    pub(crate) card: String,
    /// As what it is leased; of the tier `standard`.
    pub(crate) goods: Goods,
}

/// What was used of a GPU.
#[derive(Default)]
struct Used {
    amounts: BTreeMap<(Meter, Goods, Rate), u64>,
    /// In each part of the period.
    reserved: BTreeMap<usize, u64>,
    used_ppm_ms: u64,
    /// Of the last record.
    goods: Goods,
}

/// Those of all GPUs that these nodes have or had in a period, in their order.
pub(crate) async fn earnings(
    store: &Store,
    period: Period,
    now_ms: u64,
    nodes: &[CardsOfNode],
) -> Result<Vec<CardEarnings>, StoreError> {
    let ledger = Ledger::new(store).await?;
    let rates = Rates::new(&ledger.terms.prices, &ledger.terms.declared, period);
    let parts = rates.parts(period);
    let ids: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
    let sums = store.card_sums(&parts, &ids).await?;
    Ok(of_sums(&rates, &parts, &sums, now_ms, nodes))
}

fn of_sums(
    rates: &Rates<'_>,
    parts: &[Period],
    sums: &[Vec<CardSum>],
    now_ms: u64,
    nodes: &[CardsOfNode],
) -> Vec<CardEarnings> {
    let mut used: BTreeMap<(NodeId, &str), Used> = BTreeMap::new();
    for (at, (part, sums)) in parts.iter().zip(sums).enumerate() {
        for sum in sums {
            for (index, card) in (0..).zip(&sum.cards) {
                let of = used.entry((sum.node, card)).or_default();
                of.add(rates, (at, part), sum, index);
            }
        }
    }
    let mut all = Vec::new();
    for node in nodes {
        let names = used.range((node.id, "")..).take_while(|((id, _), _)| *id == node.id);
        let gone = names.map(|((_, card), _)| *card);
        let gone: Vec<&str> = gone.filter(|card| node.cards.iter().all(|now| now.card != *card)).collect();
        let none = Used::default();
        for (index, now) in (0..).zip(&node.cards) {
            let used = used.get(&(node.id, now.card.as_str())).unwrap_or(&none);
            let (idle_ppm_ms, idle_micro) = used.idle(rates, parts, node.first_joined_ms..now_ms, &now.goods);
            let earned = used.earned(node, &now.card, &now.goods);
            all.push(CardEarnings { gpu: Some(index), idle_ppm_ms, idle_micro, ..earned });
        }
        all.extend(gone.into_iter().map(|card| {
            let used = used.get(&(node.id, card)).unwrap_or(&none);
            used.earned(node, card, &used.goods)
        }));
    }
    all
}

impl Used {
    /// Adds the part of a sum that the GPU with this place in its list has.
    fn add(&mut self, rates: &Rates<'_>, (at, part): (usize, &Period), sum: &CardSum, index: u64) {
        let count = sum.cards.len().max(1) as u64;
        for (meter, amount) in Meter::ALL.into_iter().zip(sum.amounts) {
            let own = amount / count + u64::from(index < amount % count);
            let add = |to: &mut u64| *to = to.saturating_add(own);
            match meter {
                Meter::Reserved => add(self.reserved.entry(at).or_default()),
                Meter::Used => add(&mut self.used_ppm_ms),
                Meter::Memory | Meter::Transfer | Meter::Suspended => {}
            }
            let rate = rates.at(meter, &sum.goods, part.from_ms);
            let gflops = if rate.per == PricePer::Unit { sum.goods.gflops } else { 0 };
            let goods = Goods { gflops, ..sum.goods.clone() };
            add(self.amounts.entry((meter, goods, rate)).or_default());
        }
        self.goods = sum.goods.clone();
    }

    /// What it earned; nothing is said of its idle time.
    fn earned(&self, node: &CardsOfNode, card: &str, goods: &Goods) -> CardEarnings {
        let cost = |((meter, goods, rate), amount): (&(Meter, Goods, Rate), &u64)| {
            Line::new(TenantPath::root(), *meter, goods.clone(), *amount, *rate).cost_micro
        };
        CardEarnings {
            node: node.name.clone(),
            gpu: None,
            card: card.to_owned(),
            model: goods.model.clone(),
            pool: goods.pool.clone(),
            income_micro: self.amounts.iter().map(cost).fold(0, u64::saturating_add),
            reserved_ppm_ms: self.reserved.values().copied().fold(0, u64::saturating_add),
            used_ppm_ms: self.used_ppm_ms,
            idle_ppm_ms: 0,
            idle_micro: None,
        }
    }

    /// What was left of it while it was there, and what that would have cost.
    fn idle(
        &self,
        rates: &Rates<'_>,
        parts: &[Period],
        there: std::ops::Range<u64>,
        goods: &Goods,
    ) -> (u64, Option<u64>) {
        let (mut idle_ppm_ms, mut idle_micro) = (0_u64, None);
        for (at, part) in parts.iter().enumerate() {
            let (from_ms, until_ms) = (part.from_ms.max(there.start), part.until_ms.min(there.end));
            let whole = until_ms.saturating_sub(from_ms).saturating_mul(GPU_PPM.into());
            let idle = whole.saturating_sub(self.reserved.get(&at).copied().unwrap_or(0));
            idle_ppm_ms = idle_ppm_ms.saturating_add(idle);
            let rate = rates.at(Meter::Reserved, goods, part.from_ms);
            if rate.micro > 0 {
                let cost =
                    Line::new(TenantPath::root(), Meter::Reserved, goods.clone(), idle, rate).cost_micro;
                idle_micro = Some(idle_micro.unwrap_or(0_u64).saturating_add(cost));
            }
        }
        (idle_ppm_ms, idle_micro)
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::bill::Price;
    use sluice_api::usage::GPU_HOUR_PPM_MS;

    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn goods() -> Goods {
        Goods { model: "A100".into(), pool: "default".into(), ..Goods::default() }
    }

    fn sum(cards: &[&str], reserved: u64) -> CardSum {
        let cards = cards.iter().map(ToString::to_string).collect();
        CardSum { node: 1, cards, goods: goods(), amounts: [reserved, reserved / 2, 0, 0, 0] }
    }

    fn price(micro: u64, from_ms: u64) -> Price {
        let price = serde_json::json!({ "meter": "reserved", "micro": micro, "from_ms": from_ms });
        serde_json::from_value(price).unwrap()
    }

    fn check(prices: &[Price], until_ms: u64, sums: &[Vec<CardSum>]) -> Vec<CardEarnings> {
        let rates = Rates::new(prices, &[], Period { from_ms: 0, until_ms });
        let parts = rates.parts(Period { from_ms: 0, until_ms });
        assert_eq!(parts.len(), sums.len());
        let card = |name: &str| CardNow { card: name.into(), goods: goods() };
        let (name, cards) = ("one".to_owned(), vec![card("a"), card("b")]);
        let node = CardsOfNode { id: 1, name, first_joined_ms: HOUR_MS, cards };
        of_sums(&rates, &parts, sums, until_ms, &[node])
    }

    #[test]
    fn a_lease_of_two_gpus_is_divided_and_the_rest_of_their_time_is_idle() {
        let sums = [vec![sum(&["a"], GPU_HOUR_PPM_MS / 4), sum(&["a", "b"], 2 * GPU_HOUR_PPM_MS + 1)]];
        let cards = check(&[price(2_000_000, 0)], 5 * HOUR_MS, &sums);
        let [a, b] = &cards[..] else { panic!("{cards:?}") };
        assert_eq!(
            (a.gpu, a.income_micro, a.reserved_ppm_ms),
            (Some(0), 2_500_000, GPU_HOUR_PPM_MS / 4 * 5 + 1)
        );
        assert_eq!((b.gpu, b.income_micro, b.reserved_ppm_ms), (Some(1), 2_000_000, GPU_HOUR_PPM_MS));
        // There for four hours.
        assert_eq!((b.idle_ppm_ms, b.idle_micro), (3 * GPU_HOUR_PPM_MS, Some(6_000_000)));
        assert_eq!(a.used_ppm_ms, GPU_HOUR_PPM_MS / 8 + (2 * GPU_HOUR_PPM_MS + 1) / 4);
    }

    #[test]
    fn each_part_of_a_period_has_its_own_price() {
        let prices = [price(1_000_000, 0), price(3_000_000, 2 * HOUR_MS)];
        let sums = [vec![sum(&["a"], GPU_HOUR_PPM_MS / 2)], vec![sum(&["a"], GPU_HOUR_PPM_MS)]];
        let cards = check(&prices, 4 * HOUR_MS, &sums);
        assert_eq!((cards[0].income_micro, cards[0].idle_micro), (3_500_000, Some(500_000 + 3_000_000)));
        assert_eq!(cards[1].idle_micro, Some(1_000_000 + 6_000_000));
    }

    #[test]
    fn a_gpu_that_is_gone_keeps_what_it_earned() {
        let sums = [vec![sum(&["c"], GPU_HOUR_PPM_MS)]];
        let cards = check(&[price(1_000_000, 0)], 2 * HOUR_MS, &sums);
        let gone = &cards[2];
        assert_eq!((gone.card.as_str(), gone.gpu, gone.income_micro), ("c", None, 1_000_000));
        assert_eq!((gone.model.as_str(), gone.idle_ppm_ms, gone.idle_micro), ("A100", 0, None));
    }

    #[test]
    fn without_a_price_idle_time_costs_nothing_that_is_known() {
        let cards = check(&[], 2 * HOUR_MS, &[Vec::new()]);
        assert_eq!((cards[0].idle_ppm_ms, cards[0].idle_micro), (GPU_HOUR_PPM_MS, None));
    }
}
