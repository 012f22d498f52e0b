"""Run this policy as a ROS 2 node: ``python ros2_node.py``, with rclpy, numpy and onnxruntime.

Subscribes to ``observation`` and, in goal tasks, ``desired_goal``; publishes ``action``. All are
``std_msgs/Float32MultiArray`` in the environment's own units. Adapt the messages to your robot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from example import CONTRACT, act

RATE = 20.0  # actions per second; use the rate of the environment that the policy was trained in
MAX_AGE = 0.2  # seconds after which an observation is too old to act on


class Controller:
    """Chooses an action from the newest inputs, or none while an input is missing, wrong or too old."""

    def __init__(self, policy: Callable[..., np.ndarray] = act) -> None:
        self.policy = policy
        self.sizes: dict[str, int] = {item["name"]: item["shape"][1] for item in CONTRACT["inputs"]}
        self.inputs: dict[str, np.ndarray] = {}
        self.observed_at = -np.inf

    def receive(self, name: str, values: Sequence[float], now: float) -> bool:
        """Store one input; return False and drop it if its size is wrong or a number is not finite."""
        array = np.asarray(values, np.float32)
        if array.shape != (self.sizes[name],) or not np.isfinite(array).all():
            return False
        self.inputs[name] = array
        if name == "observation":
            self.observed_at = now
        return True

    def step(self, now: float) -> np.ndarray | None:
        """Return the action, or None if there is nothing safe to do: then publish nothing, or stop the robot."""
        if len(self.inputs) < len(self.sizes) or now - self.observed_at > MAX_AGE:
            return None
        action = self.policy(*(self.inputs[name] for name in self.sizes))
        return action if np.isfinite(action).all() else None


def main() -> None:
    """Start the node."""
    import rclpy
    from rclpy.node import Node
    from std_msgs.msg import Float32MultiArray

    rclpy.init()
    node, controller = Node("policy"), Controller()
    publisher = node.create_publisher(Float32MultiArray, "action", 10)

    def now() -> float:
        return node.get_clock().now().nanoseconds * 1e-9

    def subscribe(name: str) -> None:
        def receive(message: Float32MultiArray) -> None:
            if not controller.receive(name, message.data, now()):
                node.get_logger().warning(f"{name}: expected {controller.sizes[name]} finite numbers; dropped")

        node.create_subscription(Float32MultiArray, name, receive, 10)

    def publish() -> None:
        action = controller.step(now())
        if action is not None:
            publisher.publish(Float32MultiArray(data=np.atleast_1d(action).astype(float).tolist()))

    for name in controller.sizes:
        subscribe(name)
    node.create_timer(1.0 / RATE, publish)
    try:
        rclpy.spin(node)
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
