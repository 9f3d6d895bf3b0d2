//! Unit tests of `shm::order`.

use super::*;

#[test]
fn steps_are_all_bytes_once() {
    let steps = |order: Order, len, step| order.steps(len, step).collect::<Vec<_>>();
    assert_eq!(steps(Order::FromStart, 10, 4), [(0, 4), (4, 4), (8, 2)]);
    assert_eq!(steps(Order::FromEnd, 10, 4), [(6, 4), (2, 4), (0, 2)]);
    for order in [Order::FromStart, Order::FromEnd] {
        assert_eq!(steps(order, 4, 4), [(0, 4)]);
        assert_eq!(steps(order, 0, 0), []);
    }
}
