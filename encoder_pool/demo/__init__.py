"""The demo: real photographs and a real voice through the real service, printed and drawn."""
