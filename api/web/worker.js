// The SharedWorker: one hub for all tabs.
import {Hub} from './hub.js';

const hub = new Hub();
self.onconnect = (event) => {
  const port = event.ports[0];
  port.onmessage = (message) => hub.hear(port, message.data);
};
