"""Bullet Safety-Gym's SafetyCarReach behind the package's interface.

env.py      the environment
world.py    the simulation: bodies, layouts, rewards and costs
scene.py    where everything is, and how near: geometry without a simulator
driver.py   a scripted driver
picture.py  frames
package.py  what is imported from Bullet Safety-Gym
"""
