//! Leases that are suspended: the scheduler counts what they hold, also after a restart.

use sluice_api::lease::ResizeLease;

use super::*;
use crate::fleet::NoResize;

impl World {
    /// Suspends or resumes a lease; the error says what is in the way.
    fn set_suspended(&mut self, id: LeaseId, suspended: bool) -> Result<(), NoResize> {
        let resize = ResizeLease { suspended: Some(suspended), ..ResizeLease::default() };
        let to = self.fleet.resized(id, &resize)?;
        let in_the_way = self.fleet.no_room_to_resize(id, to, self.now_ms);
        match in_the_way.or_else(|| self.plan.make_room(&self.fleet, id, to)) {
            Some(reason) => Err(reason),
            None => {
                self.fleet.send_resize(id, to);
                self.settle();
                Ok(())
            }
        }
    }

    /// As a server does that has just begun to lead.
    fn restart(&mut self) {
        self.plan = Plan::new(&self.fleet, self.now_ms, None);
        self.settle();
    }

    fn counted(&self, id: LeaseId) -> (u16, u32) {
        let job = self.plan.scheduler.job(self.plan.work[&id].job).unwrap();
        let (_, placement) = job.tasks().next().unwrap();
        (placement.request.gpu_milli, placement.request.gpu_memory_mib)
    }
}

fn sized(share_ppm: u32, gib: u64) -> Value {
    json!({ "share_ppm": share_ppm, "memory": gib << 30 })
}

#[test]
fn a_suspended_lease_holds_what_stays_also_after_a_restart() {
    let mut world = World::new(&[1], &[("acme", json!({}))]);
    let lease = world.ask("acme", sized(500_000, 12));
    world.settle();
    world.set_suspended(lease, true).unwrap();
    assert_eq!(world.counted(lease), (0, 12 << 10), "nothing has left");
    world.restart();
    world.check();
    assert_eq!(world.counted(lease), (0, 12 << 10));
    world.vacated.insert(lease, 1 << 29);
    world.settle();
    assert_eq!(world.counted(lease), (0, 512));
    world.restart();
    world.check();
    assert_eq!(world.counted(lease), (0, 512));

    let other = world.ask("acme", sized(500_000, 15));
    world.settle();
    world.check();
    assert_eq!((world.state(lease), world.state(other)), (RUNS, RUNS));
    assert!(matches!(world.set_suspended(lease, false), Err(NoResize::NoRoom(_))));
    world.fleet.end(other, "over", 0);
    world.settle();
    world.vacated.clear();
    world.set_suspended(lease, false).unwrap();
    world.check();
    assert_eq!(world.counted(lease), (500, 12 << 10));
}

#[test]
fn a_suspended_lease_gets_no_further_tasks_and_comes_back() {
    let mut world = World::new(&[1, 1], &[("acme", json!({}))]);
    let elastic = json!({ "share_ppm": 500_000, "memory": 12_u64 << 30, "tasks": 1, "tasks_max": 2 });
    let whole = [world.ask("acme", share(1_000_000)), world.ask("acme", elastic)];
    world.settle();
    let lease = whole[1];
    assert_eq!(world.tasks_of(lease), [0]);
    world.set_suspended(lease, true).unwrap();
    world.vacated.insert(lease, 1 << 29);
    world.settle();
    world.fleet.end(whole[0], "over", 0);
    world.settle();
    world.check();
    assert_eq!(world.tasks_of(lease), [0], "a suspended lease does not grow");
    world.vacated.clear();
    world.set_suspended(lease, false).unwrap();
    world.settle();
    world.check();
    assert_eq!(world.tasks_of(lease), [0, 1]);
}

#[test]
fn a_whole_gpu_is_lent_beside_a_suspended_lease_of_which_nothing_stays() {
    let mut world = World::new(&[1], &[("red", json!({})), ("blue", json!({}))]);
    let lease = world.ask("red", share(750_000));
    world.settle();
    world.set_suspended(lease, true).unwrap();
    world.vacated.insert(lease, 0);
    world.settle();
    let whole = world.ask("blue", sized(1_000_000, 15));
    world.settle();
    assert_eq!((world.state(lease), world.state(whole)), (RUNS, RUNS));
    assert!(world.set_suspended(lease, false).is_err());
    world.vacated.insert(lease, 64 << 20);
    world.settle();
    assert_eq!(world.counted(lease), (0, 64));
    world.restart();
    assert_eq!((world.state(lease), world.state(whole)), (RUNS, RUNS));
    world.fleet.end(whole, "over", 0);
    world.settle();
    world.vacated.clear();
    world.set_suspended(lease, false).unwrap();
    assert_eq!(world.counted(lease), (750, 12 << 10));
}
