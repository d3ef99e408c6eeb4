"""Third-party engines as text envs, one module per engine. An engine is imported when its env is created."""
